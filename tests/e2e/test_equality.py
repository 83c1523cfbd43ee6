"""Greedy tokens of the served model equal transformers', token for token, however attention is spread."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.golden.prompts import NUM_TOKENS, PROMPTS
from tests.stack import Stack, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(1500)]

GOLDEN: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "smollm2.json").read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack that spreads prompts of 512 tokens and longer over its nodes."""
    spread = {"KERNELFLUME_WNODE_SPREAD_TOKENS": "256"}
    with serve(tmp_path_factory.mktemp("equality"), "--attention-nodes", "1", **spread) as served:
        yield served


@pytest.fixture(scope="module")
def split_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack whose ranges are so short that every sequence lies on several nodes."""
    with serve(
        tmp_path_factory.mktemp("split"), "--attention-nodes", "1", KERNELFLUME_WNODE_MAX_RANGE_TOKENS="16"
    ) as served:
        yield served


async def check_alone(stack: Stack) -> None:
    for name, golden in GOLDEN.items():
        assert await stack.generate(golden["prompt"], NUM_TOKENS) == golden["output"], name


async def check_together(stack: Stack, width: int = 16) -> None:
    gate = asyncio.Semaphore(width)

    async def one(name: str, golden: dict[str, Any]) -> None:
        async with gate:
            assert await stack.generate(golden["prompt"], NUM_TOKENS) == golden["output"], name

    await asyncio.gather(*(one(name, golden) for name, golden in GOLDEN.items()))


def test_golden_file_covers_every_prompt_with_a_safe_margin() -> None:
    assert set(GOLDEN) == set(PROMPTS)
    assert len(GOLDEN) >= 20
    assert sum(len(golden["prompt"]) >= 1500 for golden in GOLDEN.values()) >= 3
    for name, golden in GOLDEN.items():
        assert len(golden["output"]) == NUM_TOKENS
        assert golden["margin"] > 1e-3, f"{name} is too close to a tie for a strict comparison"


@pytest.mark.parametrize("num_nodes", [1, 2, 3])
async def test_whole_ranges(stack: Stack, num_nodes: int) -> None:
    await asyncio.to_thread(stack.scale, num_nodes)
    await check_alone(stack)
    await check_together(stack)
    await stack.wait_baseline()


@pytest.mark.parametrize("num_nodes", [1, 2, 3])
async def test_ranges_forced_to_split(split_stack: Stack, num_nodes: int) -> None:
    await asyncio.to_thread(split_stack.scale, num_nodes)
    await check_together(split_stack)
    await split_stack.wait_baseline()
