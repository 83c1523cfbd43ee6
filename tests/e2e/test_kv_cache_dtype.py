"""A stack that keeps keys and values in FP8: a quarter of float32's bytes, on any number of nodes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.golden.prompts import NUM_TOKENS
from tests.stack import Stack, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(600)]

GOLDEN: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "smollm2.json").read_text(encoding="utf-8")
)
NAMES = ("story", "chat_gravity", "code_python", "letter", "code_sql")
NODE_BYTES = 64 << 20


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    """Ranges are so short that every sequence lies on several nodes, once there are some."""
    flags = ("--attention-nodes", "1", "--attention-node-memory", str(NODE_BYTES), "--kv-cache-dtype", "fp8")
    with serve(tmp_path, *flags, KERNELFLUME_WNODE_MAX_RANGE_TOKENS="16") as served:
        yield served


def shared(one: list[int], other: list[int]) -> int:
    """Count the tokens before the first that differs."""
    pairs = zip(one, other, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


async def test_four_times_as_many_tokens_fit_and_several_nodes_continue_alike(stack: Stack) -> None:
    async def tokens() -> list[list[int]]:
        return await asyncio.gather(*(stack.generate(GOLDEN[name]["prompt"], NUM_TOKENS) for name in NAMES))

    [node] = stack.nodes()
    # 30 layers, key and value, 3 heads of 64 numbers of one byte; a page that does not fit is left out.
    assert node["capacity_tokens"] == pytest.approx(NODE_BYTES / (30 * 2 * 3 * 64), rel=0.01)
    on_one = await tokens()
    await asyncio.to_thread(stack.scale, 3)
    on_three = await tokens()
    # A number next to the middle of two of FP8's may become either, by the last bit of a sum (ADR 12), so
    # equality is not to be expected. Measured: 4 of 5 prompts, and the first 35 tokens of the other.
    same = [shared(one, three) for one, three in zip(on_one, on_three, strict=True)]
    assert sum(same) >= NUM_TOKENS * len(NAMES) // 2
    exact = [shared(found, GOLDEN[name]["output"]) for name, found in zip(NAMES, on_one, strict=True)]
    assert sum(exact) >= NUM_TOKENS * len(NAMES) // 4
