"""Requests of a real stack move between its weight nodes while they run (ADR 18)."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.router_parts import moves_of
from tests.stack import WAIT_S, Stack, Stream, ask_away, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(900)]

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2.json").read_text())
NUM_TOKENS = 80
NUM_MOVES = 10
ENOUGH_TOKENS = 1000
"""More than come while requests move so often; clients leave before."""
SAMPLINGS: list[dict[str, Any]] = [
    {"guided_regex": "[a-z ]+"},  # first, for a node's first grammar takes seconds to compile
    {},
    {"temperature": 0.8, "top_p": 0.9, "seed": 11, "logprobs": 1},
    {"repetition_penalty": 1.2, "presence_penalty": 0.5, "min_tokens": 60},
]
PROMPT = GOLDEN["story"]["prompt"]


# Nodes of a busy machine are slow to answer, which must not look like nodes that do not: so a move goes on at
# its source only if the target refused or died.
PATIENCE = {
    "KERNELFLUME_SCALER_OPERATION_DEADLINE_S": str(WAIT_S),
    "KERNELFLUME_ROUTER_HAND_OVER_TIMEOUT": str(WAIT_S),
    "KERNELFLUME_WNODE_HOLD_TIMEOUT_S": str(2 * WAIT_S),
    "KERNELFLUME_WNODE_DRAIN_TIMEOUT_S": str(WAIT_S),
    "KERNELFLUME_WNODE_GRAMMAR_TIMEOUT_S": str(WAIT_S),
}


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    flags = ("--weight-nodes", "2", "--attention-nodes", "2", "--attention-node-memory", "128MiB")
    with serve(tmp_path, *flags, **PATIENCE) as running:
        yield running


async def moves(stack: Stack) -> dict[tuple[str, str], int]:
    """Return how many moves came out how and why, as the router counts them."""
    return moves_of(await stack.metrics())


async def start(
    stack: Stack, tasks: asyncio.TaskGroup, num_tokens: int = NUM_TOKENS
) -> tuple[list[Stream], list[asyncio.Task[Stream]]]:
    """Start a stream of each kind, one when the one before has begun, so that all run together on two."""
    await stack.wait_serving(2)
    streams = [Stream() for _ in SAMPLINGS]
    running = []
    async with asyncio.timeout(WAIT_S):
        for sampling, stream in zip(SAMPLINGS, streams, strict=True):
            running.append(tasks.create_task(stack.stream(PROMPT, num_tokens, stream, **sampling)))
            while len(stream.token_ids) < 2:  # noqa: ASYNC110 - they grow
                await asyncio.sleep(0.01)
    return streams, running


async def expected_of(stack: Stack, num_tokens: int = NUM_TOKENS) -> list[list[int]]:
    """Return the tokens of streams of each kind that stay where they are."""
    streams = [stack.stream(PROMPT, num_tokens, Stream(), **sampling) for sampling in SAMPLINGS]
    return [stream.token_ids for stream in await asyncio.gather(*streams)]


async def wait_moved(stack: Stack, num_moves: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while sum((await moves(stack)).values()) < num_moves:  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.02)


async def test_streams_move_back_and_forth_with_the_same_tokens(stack: Stack) -> None:
    """Every request that is asked to move does, once: all of them, from one node to the other and back."""
    addresses = [node["address"] for node in stack.status()["weight_nodes"]]
    asked: list[int] = []
    async with asyncio.TaskGroup() as tasks:
        streams, running = await start(stack, tasks, ENOUGH_TOKENS)
        for number in range(NUM_MOVES):
            asked.append(await ask_away([addresses[number % 2]]))
            await wait_moved(stack, sum(asked))
        assert all(stream.finish_reason is None for stream in streams)
        for client in running:
            client.cancel()
    # Of the first node's some, from then on all of them.
    assert asked[1:] == [len(SAMPLINGS)] * (NUM_MOVES - 1)
    assert await moves(stack) == {("moved", "asked_away"): sum(asked)}
    longest = max(len(stream.token_ids) for stream in streams)
    for stream, expected in zip(streams, await expected_of(stack, longest), strict=True):
        assert stream.token_ids == expected[: len(stream.token_ids)]
        assert len(stream.token_ids) > NUM_MOVES
    await stack.wait_baseline()


async def test_a_weight_node_that_is_told_to_end_hands_its_streams_over(stack: Stack) -> None:
    expected = await expected_of(stack)
    async with asyncio.TaskGroup() as tasks:
        streams, _ = await start(stack, tasks)
        stack.weight_node_process("w-1").send_signal(signal.SIGTERM)
    assert [stream.token_ids for stream in streams] == expected
    # All that ran there moved, and nothing was lost with it.
    assert set(await moves(stack)) == {("moved", "asked_away")}
    assert "kernelflume_router_resumptions_total{" not in await stack.metrics()
    await stack.wait_baseline()


async def test_kills_during_moves_lose_and_repeat_nothing(stack: Stack) -> None:
    expected = await expected_of(stack)
    for killed in ("w-1", "w-2"):
        addresses = {node["node_id"]: node["address"] for node in stack.status()["weight_nodes"]}
        async with asyncio.TaskGroup() as tasks:
            streams, _ = await start(stack, tasks)
            # All are asked to leave w-1: once it is killed as their source, once w-2 as their target.
            await ask_away([addresses["w-1"]])
            stack.weight_node_process(killed).kill()
        assert [stream.token_ids for stream in streams] == expected
        async with asyncio.timeout(WAIT_S):  # it is started again
            while len({node["node_id"] for node in stack.status()["weight_nodes"]}) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
    await stack.wait_baseline()


async def test_clients_that_leave_during_moves_leave_no_page_behind(stack: Stack) -> None:
    addresses = [node["address"] for node in stack.status()["weight_nodes"]]
    for _ in range(3):
        async with asyncio.TaskGroup() as tasks:
            leaving = [
                tasks.create_task(stack.stream(PROMPT, NUM_TOKENS, Stream(), **sampling))
                for sampling in SAMPLINGS
            ]
            await asyncio.sleep(1.0)
            await ask_away(addresses)
            for task in leaving:
                task.cancel()
    await stack.wait_baseline()


@pytest.fixture
def parted(tmp_path: Path) -> Iterator[Stack]:
    """A stack whose prompts are computed by one node, and all else by the other."""
    flags = ("--weight-nodes", "2", "--weight-node-roles", "prefill,decode", "--attention-nodes", "2")
    with serve(tmp_path, *flags, "--attention-node-memory", "128MiB", **PATIENCE) as running:
        yield running


async def test_prompts_and_the_rest_are_computed_by_different_nodes(parted: Stack) -> None:
    await parted.wait_serving(2)  # with one of them alone nothing is divided
    for name in ("story", "code_c"):
        golden = GOLDEN[name]
        assert await parted.generate(golden["prompt"], len(golden["output"])) == golden["output"]
    assert await moves(parted) == {("moved", "divided"): 2}
    await parted.wait_baseline()
