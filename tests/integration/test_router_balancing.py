"""Running choices move between weight nodes for balance, at the router's end (real gRPC and HTTP)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.collector import collector
from tests.router_parts import (
    UNCOMPILABLE,
    counting,
    eventually,
    frames,
    moves_of,
    router,
    weight_node,
    write_model,
)

from kernelflume.router.placement.policies import PolicyName
from kernelflume.router.settings import PlacementSettings
from kernelflume.rpc.v1 import wnode_pb2
from kernelflume.runtime.tracing import TracingSettings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.router_parts import ScriptedWeightNode

NUM_TOKENS = 120
PAUSE_S = 0.02
BODY: dict[str, Any] = {"prompt": "a", "max_tokens": NUM_TOKENS, "return_token_ids": True, "stream": True}
EXPECTED = list(range(100, 100 + NUM_TOKENS))
# Sessions stay where they are, whatever runs there.
PLACEMENT = PlacementSettings(policy=PolicyName.STICKY, overload_factor=100.0, balance_factor=1.5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


async def stream(client: httpx.AsyncClient, session: str, **fields: Any) -> list[int]:
    headers = {"x-session-id": session}
    async with client.stream("POST", "/v1/completions", json=BODY | fields, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        told = frames([line async for line in response.aiter_lines()])
    assert told.pop() == "[DONE]"
    return [token for chunk in told for choice in chunk["choices"] for token in choice["token_ids"] or []]


async def stream_all(client: httpx.AsyncClient, sessions: str, **fields: Any) -> list[list[int]]:
    """Stream one completion a session letter, all at once; sessions are pinned first."""
    for session in dict.fromkeys(sessions):
        await stream(client, session, max_tokens=1)
    return await asyncio.gather(*(stream(client, session, **fields) for session in sessions))


def arrived(node: ScriptedWeightNode) -> list[Any]:
    """Return the requests that came to a node from another one."""
    return [request for request in node.requests if request.resumption.output_token_ids]


async def moves(client: httpx.AsyncClient) -> dict[tuple[str, str], int]:
    return moves_of((await client.get("/metrics")).text)


async def test_streams_of_one_session_spread_over_the_nodes_and_stay_there(folder: Path) -> None:
    async with (
        collector() as traces,
        weight_node(folder, counting(pause_s=PAUSE_S), num_tokens=1, node_id="w-1") as first,
        weight_node(folder, counting(pause_s=PAUSE_S), num_tokens=2, node_id="w-2") as second,
        router(
            folder,
            [first, second],
            wait_for=2,
            placement=PLACEMENT,
            tracing=TracingSettings(otlp_endpoint=traces.endpoint),
        ) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        assert await stream_all(client, "ssss") == [EXPECTED] * 4
        assert await moves(client) == {("moved", "more_requests"): 2}
        assert len(first.requests) == 1 + 4
        assert [list(request.resumption.ranges) for request in second.requests] == [
            list(first.held.ranges)
        ] * 2
        # Released by the router once the other node went on.
        assert sorted(first.cancelled) == sorted(
            request.request_id.removesuffix(".1") for request in second.requests
        )
        # The session follows the stream of it that ended last, and its next turn moves nothing.
        assert await stream(client, "s", max_tokens=1) == EXPECTED[:1]
    events = [span.events.get("kernelflume.moved") for span in traces.named("POST /v1/completions")]
    told = [event for event in events if event is not None]
    assert len(told) == 2
    for event in told:
        assert event.pop("kernelflume.move.seconds") > 0
        assert event == {
            "kernelflume.move.reason": "more_requests",
            "kernelflume.move.outcome": "moved",
            "kernelflume.move.source": "w-1",
            "kernelflume.move.target": "w-2",
        }


@pytest.mark.parametrize(
    ("sessions", "placement", "fields"),
    [
        ("abcd", {"policy": PolicyName.LEAST_LOADED}, {}),  # each node has two
        ("ss", {"balance_factor": 0.0}, {}),
        ("sss", {"balance_factor": 1.0}, {"max_tokens": 16}),  # they are about to end
    ],
)
async def test_nothing_moves_without_need(
    folder: Path, sessions: str, placement: dict[str, Any], fields: dict[str, Any]
) -> None:
    async with (
        weight_node(folder, counting(pause_s=PAUSE_S), num_tokens=1, node_id="w-1") as first,
        weight_node(folder, counting(pause_s=PAUSE_S), num_tokens=2, node_id="w-2") as second,
        router(folder, [first, second], wait_for=2, placement=PLACEMENT.model_copy(update=placement)) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        expected = EXPECTED[: fields.get("max_tokens", NUM_TOKENS)]
        assert await stream_all(client, sessions, **fields) == [expected] * len(sessions)
        assert await moves(client) == {}
        assert not arrived(first)
        assert not arrived(second)


@pytest.mark.parametrize("reason", ["role", "draining", "full"])
async def test_nothing_moves_to_a_node_that_should_not_get_it(folder: Path, reason: str) -> None:
    role = "prefill" if reason == "role" else ""
    async with (
        weight_node(folder, counting(pause_s=PAUSE_S), num_tokens=1, node_id="w-1") as first,
        weight_node(folder, counting(pause_s=PAUSE_S), num_tokens=2, node_id="w-2", role=role) as second,
    ):
        if reason == "full":
            second.load.num_requests_waiting = second.load.max_num_waiting
        async with (
            router(folder, [first, second], wait_for=2, placement=PLACEMENT) as url,
            httpx.AsyncClient(base_url=url, timeout=60) as client,
        ):
            if reason == "draining":
                await second.attached[0].put(wnode_pb2.AttachReply(draining=True))

                async def is_seen() -> bool:
                    return 'weight_nodes{serving="false"} 1.0' in (await client.get("/metrics")).text

                await eventually(is_seen)
            assert await stream_all(client, "sss") == [EXPECTED] * 3
            assert await moves(client) == {}
            assert not arrived(second)


@pytest.mark.parametrize("grammar", ["a+", UNCOMPILABLE])
async def test_what_follows_a_grammar_moves_where_that_is_compiled(folder: Path, grammar: str) -> None:
    async with (
        weight_node(folder, counting(pause_s=PAUSE_S), num_tokens=1, node_id="w-1") as first,
        weight_node(folder, counting(pause_s=PAUSE_S), num_tokens=2, node_id="w-2") as second,
        router(folder, [first, second], wait_for=2, placement=PLACEMENT) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        assert await stream_all(client, "ss", guided_regex=grammar) == [EXPECTED] * 2
        # What could not move is not asked for again soon, the other is tried once.
        compiles = grammar != UNCOMPILABLE
        assert await moves(client) == ({("moved", "more_requests"): 1} if compiles else {})
        assert len(second.prepared) == (1 if compiles else 2)
        assert len(arrived(second)) == compiles
