"""Choices that move from one weight node to another between two tokens, at the router's end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.router_parts import (
    UNCOMPILABLE,
    WAIT_S,
    Event,
    counting,
    eventually,
    frames,
    moves_of,
    router,
    weight_node,
    write_model,
)

from kernelflume.core.errors import InvalidRequestError, UnavailableError
from kernelflume.router.progress import ProgressWatch
from kernelflume.router.weightnodes import WeightNode
from kernelflume.rpc.channel import PLAINTEXT
from kernelflume.rpc.v1 import wnode_pb2
from kernelflume.runtime.clock import MonotonicClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.router_parts import ScriptedWeightNode

NUM_TOKENS = 60
BODY = {"prompt": "a", "max_tokens": NUM_TOKENS, "return_token_ids": True, "stream": True}
EXPECTED = list(range(100, 100 + NUM_TOKENS))
SLOW_S = 0.2
"""Between two tokens of a node that is left at once: on a busy machine it must not end before it is left."""
Reply = wnode_pb2.AttachReply


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


async def stream(client: httpx.AsyncClient, **fields: Any) -> list[int]:
    async with client.stream("POST", "/v1/completions", json=BODY | fields) as response:
        assert response.status_code == 200, await response.aread()
        told = frames([line async for line in response.aiter_lines()])
    assert told.pop() == "[DONE]"
    return [token for chunk in told for choice in chunk["choices"] for token in choice["token_ids"] or []]


async def outcomes(client: httpx.AsyncClient) -> dict[tuple[str, str], int]:
    """Return how many moves came out how, by outcome and reason."""
    return moves_of((await client.get("/metrics")).text)


async def drain(node: ScriptedWeightNode) -> None:
    await node.attached[0].put(Reply(draining=True))


async def test_a_draining_node_has_its_requests_moved(folder: Path) -> None:
    async with (
        weight_node(folder, counting(pause_s=SLOW_S), num_tokens=1, node_id="w-1") as source,
        weight_node(folder, counting(), num_tokens=2, node_id="w-2") as target,
        router(folder, [source, target], wait_for=2) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        asking = asyncio.create_task(stream(client))
        await source.wait(lambda: len(source.requests) == 1)
        await drain(source)
        assert await asking == EXPECTED
        [moved] = target.requests
        assert list(moved.resumption.ranges) == list(source.held.ranges)
        assert 0 < len(moved.resumption.output_token_ids) < NUM_TOKENS
        await source.wait(lambda: source.cancelled == [source.requests[0].request_id])  # released
        assert await outcomes(client) == {("moved", "asked_away"): 1}
        # Nothing more is placed there.
        assert await stream(client) == EXPECTED
        assert len(source.requests) == 1


async def test_without_another_node_a_request_stays(folder: Path) -> None:
    async with (
        weight_node(folder, counting(pause_s=0.002), node_id="w-1") as source,
        router(folder, [source]) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        asking = asyncio.create_task(stream(client))
        await source.wait(lambda: len(source.requests) == 1)
        await drain(source)
        assert await asking == EXPECTED
        assert await outcomes(client) == {}


async def failing(request: Any) -> AsyncIterator[Any]:
    raise UnavailableError("going down")
    yield Event()


async def refusing(request: Any) -> AsyncIterator[Any]:
    raise InvalidRequestError("not here")
    yield Event()


async def silent(request: Any) -> AsyncIterator[Any]:
    await asyncio.sleep(3600)
    yield Event()


@pytest.mark.parametrize("script", [failing, refusing, silent])
async def test_the_source_goes_on_when_the_target_does_not(folder: Path, script: Any) -> None:
    async with (
        weight_node(folder, counting(pause_s=0.02), num_tokens=1, node_id="w-1") as source,
        weight_node(folder, script, num_tokens=2, node_id="w-2") as target,
        router(folder, [source, target], wait_for=2, hand_over_timeout=2.0) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        asking = asyncio.create_task(stream(client))
        await source.wait(lambda: len(source.requests) == 1)
        event = wnode_pb2.RequestEvent(number=1, asked_away=True)
        await source.attached[0].put(Reply(events=[event]))
        assert await asking == EXPECTED
        assert len(target.requests) == 1
        assert await outcomes(client) == {("gone_on", "asked_away"): 1}
        assert not source.cancelled


async def test_a_source_that_dies_while_it_holds_leaves_the_target(folder: Path) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def waiting(request: Any) -> AsyncIterator[Any]:
        begun.set()
        await go.wait()
        async for event in counting()(request):
            yield event

    async with (
        weight_node(folder, counting(pause_s=SLOW_S), num_tokens=1, node_id="w-1") as source,
        weight_node(folder, waiting, num_tokens=2, node_id="w-2") as target,
        router(folder, [source, target], wait_for=2) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        asking = asyncio.create_task(stream(client))
        await source.wait(lambda: len(source.requests) == 1)
        await drain(source)
        await begun.wait()
        await source.attached[0].put(UnavailableError("killed"))
        await source.wait(lambda: bool(source.cancelled))
        go.set()
        assert await asking == EXPECTED
        assert len(target.requests) == 1


async def test_both_die_and_a_third_continues_from_the_tokens(folder: Path) -> None:
    begun = asyncio.Event()

    async def stuck(request: Any) -> AsyncIterator[Any]:
        begun.set()
        await asyncio.sleep(3600)
        yield Event()

    async with (
        weight_node(folder, counting(pause_s=SLOW_S), num_tokens=1, node_id="w-1") as source,
        weight_node(folder, stuck, num_tokens=2, node_id="w-2") as target,
        weight_node(folder, counting(), num_tokens=3, node_id="w-3") as third,
        router(folder, [source, target, third], wait_for=3) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        asking = asyncio.create_task(stream(client))
        await source.wait(lambda: len(source.requests) == 1)
        await drain(source)
        await begun.wait()
        await source.attached[0].put(UnavailableError("killed"))
        await source.wait(lambda: bool(source.cancelled))
        await target.attached[0].put(UnavailableError("killed"))
        assert await asking == EXPECTED
        [continued] = third.requests
        assert not continued.resumption.ranges


async def test_a_client_that_leaves_during_a_move_ends_both_runs(folder: Path) -> None:
    async with (
        weight_node(folder, counting(pause_s=SLOW_S), num_tokens=1, node_id="w-1") as source,
        weight_node(folder, silent, num_tokens=2, node_id="w-2") as target,
        router(folder, [source, target], wait_for=2) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        async with client.stream("POST", "/v1/completions", json=BODY) as response:
            lines = response.aiter_lines()
            await anext(lines)
            await drain(source)
            await target.wait(lambda: len(target.requests) == 1)
        await source.wait(lambda: len(source.cancelled) == 1)
        await target.wait(lambda: len(target.cancelled) == 1)

        async def none_is_counted() -> bool:
            return "vllm:num_requests_running 0.0" in (await client.get("/metrics")).text.replace(
                '{model_name="tiny"}', ""
            )

        await eventually(none_is_counted)


async def test_a_divided_request_moves_after_its_first_token(folder: Path) -> None:
    async with (
        weight_node(folder, counting(pause_s=SLOW_S), node_id="w-1", role="prefill") as prefill,
        weight_node(folder, counting(), node_id="w-2", role="decode") as decode,
        router(folder, [prefill, decode], wait_for=2) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        assert await stream(client) == EXPECTED
        [moved] = decode.requests
        assert list(moved.resumption.output_token_ids) == EXPECTED[:1]
        await prefill.wait(lambda: prefill.cancelled == [prefill.requests[0].request_id])
        assert await outcomes(client) == {("moved", "divided"): 1}


async def test_a_grammar_is_compiled_at_the_target_before_the_request_stands_still(folder: Path) -> None:
    async with (
        weight_node(folder, counting(pause_s=SLOW_S), num_tokens=1, node_id="w-1") as source,
        weight_node(folder, counting(), num_tokens=2, node_id="w-2") as target,
        router(folder, [source, target], wait_for=2) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        target.may_prepare.clear()
        asking = asyncio.create_task(stream(client, guided_regex="a+"))
        await source.wait(lambda: len(source.requests) == 1)
        await drain(source)
        await target.wait(lambda: len(target.prepared) == 1)
        assert target.prepared[0].sampling.grammar.text == "a+"
        await drain(source)  # said again and again, it is prepared once
        assert not target.requests
        target.may_prepare.set()
        assert await asking == EXPECTED
        assert len(target.prepared) == 1
        assert len(target.requests) == 1
        assert await outcomes(client) == {("moved", "asked_away"): 1}


async def test_a_node_that_is_to_end_loses_requests_that_the_target_cannot_prepare_too(folder: Path) -> None:
    async with (
        weight_node(folder, counting(pause_s=SLOW_S), num_tokens=1, node_id="w-1") as source,
        weight_node(folder, counting(), num_tokens=2, node_id="w-2") as target,
        router(folder, [source, target], wait_for=2) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        asking = asyncio.create_task(stream(client, guided_regex=UNCOMPILABLE))
        await source.wait(lambda: len(source.requests) == 1)
        await drain(source)
        assert await asking == EXPECTED
        assert await outcomes(client) == {("moved", "asked_away"): 1}


async def test_a_target_that_leaves_while_it_compiles_is_one_that_cannot(folder: Path) -> None:
    preparation = wnode_pb2.PrepareGrammarRequest(tenant="t")
    clock = MonotonicClock()
    async with weight_node(folder, counting(), node_id="w-1") as scripted:
        scripted.may_prepare.clear()
        node = WeightNode(scripted.address, PLAINTEXT, ProgressWatch(clock, WAIT_S), clock)
        asking = asyncio.create_task(node.prepare(preparation, timeout_s=WAIT_S))
        given_up = asyncio.create_task(node.prepare(preparation, timeout_s=WAIT_S))
        await scripted.wait(lambda: len(scripted.prepared) == 2)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        await node.close()
        assert await asking is False  # whoever asked goes on
        assert await node.prepare(preparation, timeout_s=WAIT_S) is False
        scripted.may_prepare.set()


async def test_the_node_that_a_divided_request_goes_on_at_compiles_meanwhile(folder: Path) -> None:
    async with (
        weight_node(folder, counting(), node_id="w-1", role="prefill") as prefill,
        weight_node(folder, counting(), node_id="w-2", role="decode") as decode,
        router(folder, [prefill, decode], wait_for=2) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        assert await stream(client, guided_regex="a+") == EXPECTED
        assert [asked.sampling.grammar.text for asked in decode.prepared] == ["a+"]
        assert not prefill.prepared
        assert await outcomes(client) == {("moved", "divided"): 1}
