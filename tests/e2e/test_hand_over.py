"""Requests of a real stack move between its weight nodes while they run (ADR 18)."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from grpc.aio import insecure_channel
from tests.stack import WAIT_S, Stack, Stream, serve

from kernelflume.rpc.v1 import wnode_pb2, wnode_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2.json").read_text())
NUM_TOKENS = 80
NUM_MOVES = 20
SAMPLINGS: list[dict[str, Any]] = [
    {"guided_regex": "[a-z ]+"},  # first, for a node's first grammar takes seconds to compile
    {},
    {"temperature": 0.8, "top_p": 0.9, "seed": 11, "logprobs": 1},
    {"repetition_penalty": 1.2, "presence_penalty": 0.5, "min_tokens": 60},
]
PROMPT = GOLDEN["story"]["prompt"]


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    flags = ("--weight-nodes", "2", "--attention-nodes", "2", "--attention-node-memory", "128MiB")
    with serve(tmp_path, *flags) as running:
        yield running


async def moves(stack: Stack) -> dict[str, float]:
    """Return how many moves came out how, as the router counts them."""
    async with httpx.AsyncClient(timeout=WAIT_S) as client:
        lines = (await client.get(f"{stack.url}/metrics")).text.splitlines()
    return {
        line.split('"')[1]: float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith("kernelflume_router_hand_overs_total{")
    }


async def ask_away(addresses: list[str]) -> int:
    """Ask every weight node to have its requests moved; return of how many that was asked."""
    num_asked = 0
    for address in addresses:
        async with insecure_channel(address) as channel:
            stub = wnode_pb2_grpc.WeightNodeStub(channel)
            answer = await stub.MoveRequests(wnode_pb2.MoveRequestsRequest(), timeout=WAIT_S)
            num_asked += answer.num_asked
    return num_asked


async def start(stack: Stack, tasks: asyncio.TaskGroup, num_tokens: int = NUM_TOKENS) -> list[Stream]:
    """Start a stream of each kind, one when the one before has begun, so that all run together."""
    streams = [Stream() for _ in SAMPLINGS]
    async with asyncio.timeout(WAIT_S):
        for sampling, stream in zip(SAMPLINGS, streams, strict=True):
            tasks.create_task(stack.stream(PROMPT, num_tokens, stream, **sampling))
            while len(stream.token_ids) < 2:  # noqa: ASYNC110 - they grow
                await asyncio.sleep(0.01)
    return streams


async def expected_of(stack: Stack) -> list[list[int]]:
    return [(await stack.stream(PROMPT, NUM_TOKENS, Stream(), **s)).token_ids for s in SAMPLINGS]


async def test_streams_move_back_and_forth_with_the_same_tokens(stack: Stack) -> None:
    expected = await expected_of(stack)
    addresses = [node["address"] for node in stack.status()["weight_nodes"]]
    num_asked = num_rounds = 0
    async with asyncio.TaskGroup() as tasks:
        streams = await start(stack, tasks)
        while num_rounds < NUM_MOVES and any(stream.finish_reason is None for stream in streams):
            before = sum(len(stream.token_ids) for stream in streams)
            # From one node to the other and, a round later, back.
            num_asked += await ask_away([addresses[num_rounds % 2]])
            num_rounds += 1
            async with asyncio.timeout(WAIT_S):
                while (  # noqa: ASYNC110 - they grow
                    sum(len(stream.token_ids) for stream in streams) < before + len(streams)
                    and any(stream.finish_reason is None for stream in streams)
                ):
                    await asyncio.sleep(0.005)
    assert [stream.token_ids for stream in streams] == expected
    # A node that is slow to answer lets its source go on, which is no fault; most of them do move.
    outcome = await moves(stack)
    assert outcome["moved"] >= NUM_MOVES / 2
    assert outcome["moved"] > sum(outcome.values()) / 2
    await stack.wait_baseline()


async def test_a_weight_node_that_is_told_to_end_hands_its_streams_over(stack: Stack) -> None:
    expected = await expected_of(stack)
    async with asyncio.TaskGroup() as tasks:
        streams = await start(stack, tasks)
        stack.weight_node_process("w-1").send_signal(signal.SIGTERM)
    assert [stream.token_ids for stream in streams] == expected
    assert (await moves(stack))["moved"] > 0
    await stack.wait_baseline()


async def test_kills_during_moves_lose_and_repeat_nothing(stack: Stack) -> None:
    expected = await expected_of(stack)
    for killed in ("w-1", "w-2"):
        addresses = {node["node_id"]: node["address"] for node in stack.status()["weight_nodes"]}
        async with asyncio.TaskGroup() as tasks:
            streams = await start(stack, tasks)
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
    with serve(tmp_path, *flags, "--attention-node-memory", "128MiB") as running:
        yield running


async def test_prompts_and_the_rest_are_computed_by_different_nodes(parted: Stack) -> None:
    for name in ("story", "code_c"):
        golden = GOLDEN[name]
        assert await parted.generate(golden["prompt"], len(golden["output"])) == golden["output"]
    assert set(await moves(parted)) == {"moved"}  # one is not divided while a node does not answer in time
    await parted.wait_baseline()
