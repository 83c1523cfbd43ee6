"""What the prefix cache shares and what moves between weight nodes, where keys and values are GPU memory."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.router_parts import moves_of
from tests.stack import WAIT_S, Stack, Stream, ask_away, cached_tokens, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.timeout(500),
]

GOLDEN: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "smollm2.json").read_text(encoding="utf-8")
)
PROMPT: list[int] = GOLDEN["long_1500"]["prompt"][:400]
PAGE_TOKENS = 16
NUM_TOKENS = 24
NUM_ASKERS = 6
NUM_MOVES = 6
KINDS = {
    "posted": ("float32", {}),
    "device": ("bfloat16", {"KERNELFLUME_WNODE_DATA_PATH": "device"}),
    "host": ("bfloat16", {"KERNELFLUME_WNODE_DATA_PATH": "host"}),
}
"""Data path -> the number format that has it, and what chooses it."""


def of_kind(kind: str, folder: Path, num_weight_nodes: int) -> Iterator[Stack]:
    dtype, settings = KINDS[kind]
    settings = settings | {
        "KERNELFLUME_ANODE_PAGE_TOKENS": str(PAGE_TOKENS),
        "KERNELFLUME_WNODE_SPREAD_TOKENS": "64",
        "KERNELFLUME_WNODE_HOLD_TIMEOUT_S": str(WAIT_S),
    }
    devices = ("--device", "cuda:0", "--attention-devices", f"cuda:{torch.cuda.device_count() - 1}")
    nodes = ("--weight-nodes", str(num_weight_nodes), "--attention-nodes", "2")
    with serve(folder, *nodes, "--dtype", dtype, *devices, **settings) as stack:
        yield stack


@pytest.fixture(params=KINDS)
def stack(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stack]:
    yield from of_kind(request.param, tmp_path, 1)


@pytest.fixture(params=KINDS)
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stack]:
    yield from of_kind(request.param, tmp_path, 2)


def common(mine: list[int], others: list[int]) -> int:
    """How many tokens come before the first that differs."""
    pairs = enumerate(zip(mine, others, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(mine), len(others)))


async def test_what_was_computed_is_shared_with_all_who_ask_at_once(
    stack: Stack, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    """Shared pages that end within a page are copied before any of the askers appends to its own."""
    prompt = PROMPT[: len(PROMPT) // PAGE_TOKENS * PAGE_TOKENS - 11]
    alone = await stack.complete(prompt, NUM_TOKENS, cache_salt="alone")
    first = await stack.complete(prompt, NUM_TOKENS, cache_salt="together")
    askers = [stack.complete(prompt, NUM_TOKENS, cache_salt="together") for _ in range(NUM_ASKERS)]
    answers = await asyncio.gather(*askers)
    assert cached_tokens(alone) == cached_tokens(first) == 0
    whole_blocks = (len(prompt) - 1) // PAGE_TOKENS * PAGE_TOKENS
    assert [cached_tokens(answer) for answer in answers] == [whole_blocks] * NUM_ASKERS
    expected, *found = [answer["choices"][0]["token_ids"] for answer in (alone, first, *answers)]
    same = [common(tokens, expected) for tokens in found]
    record_property("tokens before the first that differs", same)
    # What is computed together does not change float32's tokens; bfloat16's may part, as it rounds otherwise.
    assert min(same) == NUM_TOKENS if "posted" in request.node.name else min(same) > 0
    await stack.wait_baseline()


async def test_streams_move_between_two_weight_nodes_of_one_pool(
    pair: Stack, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> None:
    addresses = [node["address"] for node in pair.status()["weight_nodes"]]
    await pair.wait_serving(2)
    expected = await pair.generate(PROMPT, 600, cache_salt="alone")
    streams = [Stream() for _ in range(4)]
    num_asked = 0
    async with asyncio.TaskGroup() as tasks:
        for number, stream in enumerate(streams):
            tasks.create_task(pair.stream(PROMPT, 600, stream, cache_salt=str(number)))
        async with asyncio.timeout(WAIT_S):
            while min(len(stream.token_ids) for stream in streams) < 2:  # noqa: ASYNC110 - they grow
                await asyncio.sleep(0.01)
            for number in range(NUM_MOVES):
                num_asked += await ask_away([addresses[number % 2]])
                while sum(moves_of(await pair.metrics()).values()) < num_asked:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.02)
    assert num_asked > len(streams)
    assert set(moves_of(await pair.metrics())) == {("moved", "asked_away")}
    assert [len(stream.token_ids) for stream in streams] == [600] * len(streams)
    same = [common(stream.token_ids, expected) for stream in streams]
    record_property("tokens before the first that differs", same)
    record_property("longest gap s", max(max(stream.gaps) for stream in streams))
    assert min(same) == 600 if "posted" in request.node.name else min(same) > 0
    await pair.wait_baseline()
