"""Requests whose weight node is lost after their first token: another one goes on with them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.router_parts import (
    Event,
    counting,
    eventually,
    frames,
    port_of,
    post,
    router,
    weight_node,
    write_model,
)

from kernelflume.core.errors import InvalidRequestError, OverloadedError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NUM_TOKENS = 40
BODY = {"prompt": "a", "max_tokens": NUM_TOKENS, "return_token_ids": True}
EXPECTED = list(range(100, 100 + NUM_TOKENS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


async def resumptions(client: httpx.AsyncClient) -> dict[str, float]:
    found = {}
    for line in (await client.get("/metrics")).text.splitlines():
        if line.startswith("kernelflume_router_resumptions_total{"):
            found[line.split('"')[1]] = float(line.rsplit(" ", 1)[1])
    return found


async def stream(client: httpx.AsyncClient, **fields: Any) -> tuple[list[int], Any, httpx.Headers]:
    """Return the tokens, the last frame before the end, and the headers of a streamed completion."""
    body = BODY | {"stream": True, "stream_options": {"include_usage": True}} | fields
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        *told, last = frames([line async for line in response.aiter_lines()])
    if last == "[DONE]":
        last = told.pop()
    tokens = [token for chunk in told for choice in chunk["choices"] for token in choice["token_ids"] or []]
    return tokens, last, response.headers


async def test_a_stream_goes_on_on_another_node(folder: Path) -> None:
    async with (
        weight_node(folder, counting(lost_after=7), num_tokens=1, node_id="w-1") as lost,
        weight_node(folder, counting(), num_tokens=2, node_id="w-2") as other,
        router(folder, [lost, other], wait_for=2) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        tokens, last, headers = await stream(client, temperature=0)
        assert tokens == EXPECTED
        assert last["usage"]["completion_tokens"] == NUM_TOKENS
        assert headers["x-kernelflume-weight-node"] == "w-1"
        [first], [second] = lost.requests, other.requests
        assert list(second.resumption.output_token_ids) == EXPECTED[:7]
        assert not first.HasField("resumption")
        assert second.request_id != first.request_id
        second.request_id = first.request_id
        second.ClearField("resumption")
        assert second == first
        assert await resumptions(client) == {"resumed": 1.0}
        # The one that answers as a whole tells the node that ended it.
        whole = await client.post("/v1/completions", json=BODY)
        assert whole.json()["choices"][0]["token_ids"] == EXPECTED
        assert whole.headers["x-kernelflume-weight-node"] == "w-2"


async def test_what_draws_goes_on_with_the_same_random_numbers(folder: Path) -> None:
    async def drawing(request: Any) -> AsyncIterator[Any]:
        yield Event(token_ids=[100], random_key=-(2**62))
        yield Event(token_ids=[101])
        raise UnavailableError("going down")

    async with (
        weight_node(folder, drawing, num_tokens=1) as lost,
        weight_node(folder, counting(), num_tokens=2) as other,
        router(folder, [lost, other], wait_for=2) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        assert (await stream(client))[0] == EXPECTED
        [resumed] = other.requests
        assert resumed.resumption.random_key == -(2**62)


async def test_a_broken_stream_of_the_only_node_is_made_anew_and_its_requests_go_on(folder: Path) -> None:
    async with (
        weight_node(folder, counting(pause_s=0.01)) as node,
        router(folder, [node]) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        asking = [asyncio.create_task(stream(client)) for _ in range(3)]
        await node.wait(lambda: len(node.requests) == 3)
        await asyncio.sleep(0.1)
        node.attached[0].put_nowait(UnavailableError("going down"))
        assert [(await task)[0] for task in asking] == [EXPECTED] * 3
        names = [request.request_id for request in node.requests]
        assert len(set(names)) == len(names)


async def test_a_full_queue_is_waited_for(folder: Path) -> None:
    num_refused = 0

    async def full_at_first(request: Any) -> AsyncIterator[Any]:
        nonlocal num_refused
        if num_refused < 4:
            num_refused += 1
            raise OverloadedError("the queue is full", retry_after_s=1.0)
        async for event in counting()(request):
            yield event

    async with (
        weight_node(folder, counting(lost_after=3), num_tokens=1) as lost,
        weight_node(folder, full_at_first, num_tokens=2) as other,
        router(folder, [lost, other], wait_for=2) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        lost_server = lost.server

        async def lose() -> None:
            await lost.wait(lambda: len(lost.requests) == 1)
            await lost_server.stop(0)

        losing = asyncio.create_task(lose())
        assert (await stream(client))[0] == EXPECTED
        await losing
        assert num_refused == 4


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (UnavailableError("going down too"), "service_unavailable_error"),
        (InvalidRequestError("no"), "invalid_request_error"),
    ],
)
async def test_what_cannot_go_on_ends_with_an_error_frame(
    folder: Path, error: Exception, outcome: str
) -> None:
    async def refusing(request: Any) -> AsyncIterator[Any]:
        if not request.HasField("resumption"):
            async for event in counting(lost_after=2)(request):
                yield event
        raise error

    async with (
        weight_node(folder, refusing) as node,
        router(folder, [node]) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        tokens, last, _ = await stream(client)
        assert tokens == EXPECTED[:2]
        assert last["error"]["type"] == outcome
        # A request that brings nodes down does so a few times only.
        assert 2 <= len(node.requests) <= 4


async def test_without_another_node_the_search_ends_in_time(folder: Path) -> None:
    async with (
        weight_node(folder, counting(pause_s=0.5)) as node,
        router(folder, [node], resume_timeout=0.3) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        asking = asyncio.create_task(stream(client))
        await node.wait(lambda: len(node.requests) == 1)
        await asyncio.sleep(0.1)
        await node.server.stop(0)
        tokens, last, _ = await asking
        assert tokens == EXPECTED[: len(tokens)]
        assert last["error"]["type"] == "service_unavailable_error"
        assert await resumptions(client) == {"given_up": 1.0}


async def test_a_client_that_leaves_ends_the_search(folder: Path) -> None:
    async with (
        weight_node(folder, counting(pause_s=0.5)) as node,
        router(folder, [node], resume_timeout=600.0) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
        writer.write(post(BODY | {"stream": True}))
        await reader.readuntil(b"data: ")
        await node.server.stop(0)

        async def is_idle() -> bool:
            shown = (await client.get("/metrics")).text
            return "kernelflume_router_requests_in_progress 0.0" in shown

        assert not await is_idle()
        writer.close()
        await eventually(is_idle)
        shown = (await client.get("/metrics")).text
        assert 'vllm:num_requests_running{model_name="tiny"} 0.0' in shown
        assert await resumptions(client) == {}
