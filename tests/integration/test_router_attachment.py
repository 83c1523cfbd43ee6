"""The stream that carries all of a router's requests to a weight node, at the router's end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.router_parts import (
    Event,
    byte_level_tokenizer,
    connect_narrowly,
    endless,
    eventually,
    frames,
    port_of,
    post,
    router,
    saying,
    wait_ready,
    weight_node,
    write_model,
)

from kernelflume.core.errors import UnavailableError
from kernelflume.router import generation
from kernelflume.rpc.v1 import wnode_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

LETTERS = {letter: byte_level_tokenizer().encode(letter).ids[0] for letter in "abcdefghijklmnop"}
LETTER = LETTERS["a"]
BODY = {"prompt": "a", "max_tokens": 200}
Reply = wnode_pb2.AttachReply


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


async def silent(request: Any) -> AsyncIterator[Any]:
    await asyncio.sleep(3600)
    yield Event()


async def text_of(client: httpx.AsyncClient, body: dict[str, Any]) -> str:
    async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
        assert response.status_code == 200
        *chunks, done = frames([line async for line in response.aiter_lines()])
    assert done == "[DONE]"
    return "".join(chunk["choices"][0]["text"] for chunk in chunks)


async def test_requests_that_run_together_get_their_own_tokens(folder: Path) -> None:
    by_token = {token_id: letter for letter, token_id in LETTERS.items()}

    async def repeat_the_prompt(request: Any) -> AsyncIterator[Any]:
        [token_id] = request.prompt_token_ids
        for _ in range(30):
            yield Event(token_ids=[token_id])
            await asyncio.sleep(0)
        yield Event(token_ids=[token_id], finish_reason="length")

    async with (
        weight_node(folder, repeat_the_prompt) as node,
        router(folder, [node]) as url,
        httpx.AsyncClient(base_url=url, timeout=30, limits=httpx.Limits(max_connections=64)) as client,
    ):
        asked = list(LETTERS) * 3
        texts = await asyncio.gather(*(text_of(client, {"prompt": letter}) for letter in asked))
        assert texts == [letter * 31 for letter in asked]
        assert len(node.attached) == 1
        assert not node.cancelled
        assert {by_token[request.prompt_token_ids[0]] for request in node.requests} == set(LETTERS)


async def test_a_broken_stream_fails_its_requests_and_is_opened_anew(folder: Path) -> None:
    async with (
        weight_node(folder, endless(LETTER)) as node,
        router(folder, [node], resume_timeout=0.0) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        async with client.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as response:
            lines = response.aiter_lines()
            await anext(lines)
            [replies] = node.attached
            replies.put_nowait(UnavailableError("going down"))
            *_, last = frames([line async for line in lines])
        assert last["error"]["type"] == "service_unavailable_error"
        assert "going down" in last["error"]["message"]
        await node.wait(lambda: len(node.cancelled) == 1)
        node.script = saying(LETTER)
        await wait_ready(port_of(url))
        assert await text_of(client, BODY) == "a"


async def test_a_request_whose_stream_breaks_before_its_first_token_runs_elsewhere(folder: Path) -> None:
    async with (
        # Idle nodes are told apart by their tokens: the first is tried first.
        weight_node(folder, silent, num_tokens=1) as bad,
        weight_node(folder, saying(LETTER), num_tokens=2) as good,
        router(folder, [bad, good]) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):

        async def both_serve() -> bool:
            return 'weight_nodes{serving="true"} 2.0' in (await client.get("/metrics")).text

        await eventually(both_serve)
        asking = asyncio.create_task(text_of(client, BODY))
        await bad.wait(lambda: len(bad.requests) == 1)
        bad.attached[0].put_nowait(UnavailableError("going down"))
        assert await asking == "a"
        assert len(good.requests) == 1


async def test_a_client_that_leaves_ends_its_own_request_only(folder: Path) -> None:
    async with (
        weight_node(folder, endless(LETTER)) as node,
        router(folder, [node]) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
        client.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as response,
    ):
        lines = response.aiter_lines()
        await anext(lines)
        [stays] = [request.request_id for request in node.requests]
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
        writer.write(post(BODY | {"stream": True}))
        await reader.readuntil(b"data: ")
        writer.close()
        await node.wait(lambda: len(node.cancelled) == 1)
        assert stays not in node.cancelled
        for _ in range(5):
            await anext(lines)


async def test_a_client_that_does_not_read_holds_up_nobody(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "_MAX_UNTAKEN", 50_000)

    async def flood(request: Any) -> AsyncIterator[Any]:
        if len(request.prompt_token_ids) == 1:
            async for event in saying(LETTER)(request):
                yield event
        while True:
            yield Event(token_ids=[LETTER] * 10_000)
            await asyncio.sleep(0.02)

    async with (
        weight_node(folder, flood) as node,
        router(folder, [node]) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        _, writer = await connect_narrowly(port_of(url))
        writer.write(post(BODY | {"prompt": "ab cd", "stream": True, "return_token_ids": True}))
        await node.wait(lambda: len(node.requests) == 1)
        for _ in range(3):
            assert await text_of(client, BODY) == "a"
        # What waits for it is bounded, long before anybody gives up writing to it.
        await node.wait(lambda: len(node.cancelled) == 1)
        writer.close()


async def test_a_request_has_a_deadline(folder: Path) -> None:
    async with (
        weight_node(folder, endless(LETTER)) as node,
        router(folder, [node], request_timeout=2.0) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        answer = await client.post("/v1/completions", json=BODY)
        assert answer.status_code == 504
        await node.wait(lambda: len(node.cancelled) == 1)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(numbers=[1, 2], token_ids=[LETTER]),
        Reply(events=[wnode_pb2.RequestEvent(number=1, failure=wnode_pb2.RequestFailure(code=99))]),
        Reply(events=[wnode_pb2.RequestEvent(number=1, event=Event(finish_reason="strange"))]),
        Reply(events=[wnode_pb2.RequestEvent(number=1, event=Event(finish_reason="stop"))] * 2),
        Reply(
            events=[
                wnode_pb2.RequestEvent(
                    number=1, failure=wnode_pb2.RequestFailure(code=8, trailers={"retry-after-ms": "soon"})
                )
            ]
        ),
    ],
)
async def test_a_weight_node_that_talks_nonsense_fails_what_runs_there(folder: Path, reply: Reply) -> None:
    async with (
        weight_node(folder, silent) as node,
        router(folder, [node]) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        asking = asyncio.create_task(client.post("/v1/completions", json=BODY))
        await node.wait(lambda: len(node.requests) == 1)
        # News of what was never asked for is no harm.
        node.attached[0].put_nowait(Reply(numbers=[77], token_ids=[LETTER]))
        node.attached[0].put_nowait(reply)
        answer = await asking
        assert answer.status_code in {200, 429, 500, 503}
        assert answer.status_code == 200 or "error" in answer.json()
        node.script = saying(LETTER)
        await wait_ready(port_of(url))
        assert await text_of(client, BODY) == "a"


async def test_a_weight_node_that_is_not_attached_is_not_used(folder: Path) -> None:
    async with (
        weight_node(folder, saying(LETTER)) as node,
        router(folder, [node]) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        node.takes_routers = False
        node.attached[0].put_nowait(UnavailableError("going down"))

        async def is_not_ready() -> bool:
            return (await client.get("/ready")).status_code == 503

        await eventually(is_not_ready)
        assert (await client.post("/v1/completions", json=BODY)).status_code == 503
        node.takes_routers = True
        await wait_ready(port_of(url))
        assert await text_of(client, BODY) == "a"
