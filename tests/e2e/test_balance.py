"""Running requests of a real stack move between its weight nodes for balance, where there is need."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.router_parts import moves_of
from tests.stack import WAIT_S, Stack, Stream, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(900)]

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2.json").read_text())
PROMPT = GOLDEN["story"]["prompt"]
NUM_TOKENS = 160
SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8, "top_p": 0.9, "seed": 11},
    {"repetition_penalty": 1.2, "presence_penalty": 0.5, "min_tokens": 60},
    {"temperature": 1.0, "seed": 5, "logprobs": 1},
]


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    flags = ("--weight-nodes", "2", "--attention-nodes", "2", "--attention-node-memory", "128MiB")
    settings = {
        # A session's requests stay together, however many they are.
        "KERNELFLUME_ROUTER_PLACEMENT__OVERLOAD_FACTOR": "100",
        "KERNELFLUME_ROUTER_PLACEMENT__BALANCE_FACTOR": "1.5",
        "KERNELFLUME_ROUTER_REFRESH_INTERVAL": "0.2",
        # A busy machine is slow to start nodes, and these to answer.
        "KERNELFLUME_SCALER_OPERATION_DEADLINE_S": str(WAIT_S),
        "KERNELFLUME_ROUTER_HAND_OVER_TIMEOUT": str(WAIT_S),
        "KERNELFLUME_WNODE_HOLD_TIMEOUT_S": str(2 * WAIT_S),
    }
    with serve(tmp_path, *flags, "--placement-policy", "sticky", **settings) as running:
        yield running


async def moves(stack: Stack) -> dict[tuple[str, str], int]:
    return moves_of(await stack.metrics())


async def num_appended(stack: Stack) -> int:
    """Return how many tokens' keys and values attention nodes were given."""
    return sum(node.tokens_appended for node in await stack.statistics())


async def stream_all(stack: Stack, sessions: str, salt: str) -> tuple[list[list[int]], int]:
    """Stream one completion a session letter, all together; return their tokens, and how many were appended.

    Each starts when the one before has begun, and finds nothing of it in the pool.
    """
    before = await num_appended(stack)
    streams = [Stream() for _ in SAMPLINGS]
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(WAIT_S):
        for index, (session, sampling) in enumerate(zip(sessions, SAMPLINGS, strict=True)):
            fields = sampling | {"user": session, "cache_salt": f"{salt} {index}"}
            tasks.create_task(stack.stream(PROMPT, NUM_TOKENS, streams[index], **fields))
            while not streams[index].token_ids:  # noqa: ASYNC110 - they grow
                await asyncio.sleep(0.01)
    assert {stream.finish_reason for stream in streams} == {"length"}
    return [stream.token_ids for stream in streams], await num_appended(stack) - before


async def test_sessions_move_from_a_crowded_node_with_the_same_tokens_and_nothing_computed_again(
    stack: Stack,
) -> None:
    await stack.wait_serving(2)
    # Sessions that nobody knows go to the node with the fewest tokens: two to each, and there they stay.
    expected, num_expected = await stream_all(stack, "abcd", "even")
    # Only where one node is done with both of its own may it take one of the other's.
    num_even = sum((await moves(stack)).values())
    assert num_even <= 1
    assert num_expected == len(SAMPLINGS) * (len(PROMPT) + NUM_TOKENS - 1)
    # Of one session's four two move, and one more if a node is done with its own before the other.
    told, num_told = await stream_all(stack, "ssss", "crowded")
    assert told == expected
    assert num_told == num_expected
    found = await moves(stack)
    assert set(found) == {("moved", "more_requests")}
    assert found["moved", "more_requests"] - num_even in {2, 3}
    await stack.wait_baseline()
