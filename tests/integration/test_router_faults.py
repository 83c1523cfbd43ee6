"""What the router does when clients leave, weight nodes fail, and too much is asked of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.router_parts import (
    WAIT_S,
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
    wait_listening,
    wait_ready,
    weight_node,
    write_model,
)

from kernelflume.core.errors import InvalidRequestError, KernelFlumeError, OverloadedError, UnavailableError
from kernelflume.runtime.service import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.router_parts import ScriptedWeightNode

LETTER = byte_level_tokenizer().encode("x").ids[0]
BODY = {"prompt": "a", "max_tokens": 200}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def failing(error: Exception, *before: int) -> Any:
    async def script(request: Any) -> AsyncIterator[Any]:
        for token_id in before:
            yield Event(token_ids=[token_id])
        raise error

    return script


async def silent(request: Any) -> AsyncIterator[Any]:
    await asyncio.sleep(3600)
    yield Event()


async def metric(client: httpx.AsyncClient, name: str) -> float:
    lines = (await client.get("/metrics")).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


async def wait_idle(client: httpx.AsyncClient) -> None:
    async def is_idle() -> bool:
        return await metric(client, "kernelflume_router_requests_in_progress") == 0

    await eventually(is_idle)


async def wait_none_counted(client: httpx.AsyncClient) -> None:
    async def is_none_counted() -> bool:
        return await metric(client, "vllm:num_requests_") == 0

    await eventually(is_none_counted)


async def wait_not_ready(client: httpx.AsyncClient) -> None:
    async def is_not_ready() -> bool:
        return (await client.get("/ready")).status_code == 503

    await eventually(is_not_ready)


async def send_and_leave(
    port: int, body: dict[str, Any], node: ScriptedWeightNode, num_choices: int, *, read: bool
) -> None:
    """Post a request over a plain socket and close it once it runs, before the answer or in its middle."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(post(body))
    await writer.drain()
    if read:
        await reader.readuntil(b"data: ")
    await node.wait(lambda: len(node.requests) == num_choices)
    writer.close()


@pytest.mark.parametrize(
    ("script", "streams", "read"),
    [("endless", True, True), ("silent", True, False), ("endless", False, False)],
)
async def test_a_client_that_leaves_cancels_the_call(
    folder: Path, script: str, streams: bool, read: bool
) -> None:
    scripts = {"endless": endless(LETTER), "silent": silent}
    async with (
        weight_node(folder, scripts[script]) as node,
        router(folder, [node]) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        await send_and_leave(port_of(url), BODY | {"stream": streams, "n": 2}, node, 2, read=read)
        await node.wait(lambda: len(node.cancelled) == 2)
        await wait_idle(client)
        assert await metric(client, "kernelflume_router_client_disconnects_total") == 1
        await wait_none_counted(client)


async def test_a_node_that_fails_before_the_first_token_is_replaced(folder: Path) -> None:
    async with (
        # Idle nodes are told apart by their tokens: the bad one is tried first.
        weight_node(folder, failing(UnavailableError("going down")), num_tokens=1) as bad,
        weight_node(folder, saying(LETTER), num_tokens=2) as good,
        router(folder, [bad, good]) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):

        async def both_serve() -> bool:
            return await metric(client, 'kernelflume_router_weight_nodes{serving="true"}') == 2

        await eventually(both_serve)
        for _ in range(4):
            answer = await client.post("/v1/completions", json=BODY)
            assert answer.json()["choices"][0]["text"] == "x"
        assert len(good.requests) == 4
        assert bad.requests
        assert await metric(client, "kernelflume_router_failed_attempts_total") == len(bad.requests)


async def test_a_node_that_is_gone_gives_503_and_its_return_is_noticed(folder: Path) -> None:
    async with (
        weight_node(folder, saying(LETTER)) as node,
        router(folder, [node]) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        await node.server.set_serving(serving=False)
        await wait_not_ready(client)
        for body in (BODY, BODY | {"stream": True}):
            refused = await client.post("/v1/completions", json=body)
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "1"
            assert refused.json()["error"]["type"] == "service_unavailable_error"
        assert (await client.get("/health")).status_code == 200
        await node.server.set_serving(serving=True)
        await wait_ready(port_of(url))
        assert (await client.post("/v1/completions", json=BODY)).status_code == 200


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (OverloadedError("queue is full", retry_after_s=2.5), 429, "rate_limit_error"),
        (InvalidRequestError("can never run", parameter="prompt"), 400, "invalid_request_error"),
    ],
)
async def test_a_refusal_has_its_status_also_for_a_stream(
    folder: Path, error: KernelFlumeError, status: int, kind: str
) -> None:
    async with (
        weight_node(folder, failing(error)) as node,
        router(folder, [node]) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        for streams in (False, True):
            refused = await client.post("/v1/completions", json=BODY | {"stream": streams})
            assert refused.status_code == status
            assert refused.json()["error"]["type"] == kind
            if status == 429:
                assert refused.headers["retry-after"] == "3"
        await wait_idle(client)
        await wait_none_counted(client)


async def test_a_failure_in_mid_stream_is_an_error_frame_and_the_end(folder: Path) -> None:
    async with (
        weight_node(folder, failing(UnavailableError("going down"), LETTER, LETTER)) as node,
        router(folder, [node], resume_timeout=0.0) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        async with client.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as response:
            assert response.status_code == 200
            *chunks, last = frames([line async for line in response.aiter_lines()])
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "xx"
        assert last["error"]["type"] == "service_unavailable_error"
        assert (await client.post("/v1/completions", json=BODY)).status_code == 503


@pytest.mark.parametrize("script", [saying(LETTER, reason="abort"), saying(reason="", stop_token_id=None)])
async def test_an_aborted_or_unfinished_run_is_an_error(folder: Path, script: Any) -> None:
    async with (
        weight_node(folder, script) as node,
        router(folder, [node]) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        assert (await client.post("/v1/completions", json=BODY)).status_code == 503


async def test_one_request_too_many_is_refused(folder: Path) -> None:
    async with (
        weight_node(folder, endless(LETTER)) as node,
        router(folder, [node], max_concurrent_requests=1, max_waiting_requests=0) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        async with client.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as response:
            await anext(response.aiter_lines())
            refused = await client.post("/v1/completions", json=BODY)
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"
            assert refused.json()["error"]["code"] == "overloaded"
        await node.wait(lambda: len(node.cancelled) == 1)


async def test_silence_of_a_weight_node_is_bounded(folder: Path) -> None:
    async with (
        weight_node(folder, silent) as node,
        router(folder, [node], stall_timeout=0.2) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        answer = await client.post("/v1/completions", json=BODY)
        assert answer.status_code == 504
        await node.wait(lambda: len(node.cancelled) == 1)


async def test_a_body_that_never_arrives_is_given_up(folder: Path) -> None:
    async with weight_node(folder, silent) as node, router(folder, [node], body_timeout=0.2) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
        assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        writer.close()


async def test_a_client_that_does_not_read_is_cut_off(folder: Path) -> None:
    async def flood(request: Any) -> AsyncIterator[Any]:
        while True:
            yield Event(token_ids=[LETTER] * 4096)
            await asyncio.sleep(0)

    async with (
        weight_node(folder, flood) as node,
        router(folder, [node], write_timeout=0.3) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        _, writer = await connect_narrowly(port_of(url))
        writer.write(post(BODY | {"stream": True, "return_token_ids": True}))
        await node.wait(lambda: len(node.cancelled) == 1)
        await wait_idle(client)
        assert await metric(client, "kernelflume_router_client_disconnects_total") == 1
        writer.close()


async def test_a_node_without_attention_nodes_is_not_used(folder: Path) -> None:
    async with (
        weight_node(folder, saying(LETTER)) as node,
        router(folder, [node]) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        node.load.ClearField("prepared_nodes")
        await wait_not_ready(client)
        assert (await client.post("/v1/completions", json=BODY)).status_code == 503
        assert not node.requests


async def test_a_node_of_another_model_is_not_used(folder: Path) -> None:
    async with weight_node(folder, saying(LETTER)) as node:
        node.card.geometry.model_revision = "another"
        async with (
            router(folder, [], weight_nodes=(node.address,)) as url,
            httpx.AsyncClient(base_url=url) as client,
        ):
            await asyncio.sleep(0.3)
            assert (await client.get("/ready")).status_code == 503
        assert not node.requests


async def start_process(folder: Path, address: str, *flags: str) -> tuple[asyncio.subprocess.Process, int]:
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "kernelflume.router",
        "--model",
        str(folder),
        "--served-model-name",
        "a,b",
        "--weight-nodes",
        address,
        "--port",
        str(port),
        "--refresh-interval",
        "0.1",
        *flags,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"KERNELFLUME_ROUTER_MAX_CHOICES": "3"},
    )
    await wait_listening(port)
    await wait_ready(port)
    return process, port


async def test_sigterm_lets_a_stream_end(folder: Path) -> None:
    go_on = asyncio.Event()

    async def script(request: Any) -> AsyncIterator[Any]:
        yield Event(token_ids=[LETTER])
        await go_on.wait()
        yield Event(token_ids=[LETTER], finish_reason="length")

    async with weight_node(folder, script) as node:
        process, port = await start_process(folder, node.address, "--shutdown-timeout", "120")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            assert [model["id"] for model in (await client.get("/v1/models")).json()["data"]] == ["a", "b"]
            assert (await client.post("/v1/completions", json=BODY | {"n": 4})).status_code == 400
            async with client.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as response:
                lines = response.aiter_lines()
                first = await anext(lines)
                process.send_signal(signal.SIGTERM)
                await wait_not_ready(client)
                assert (await client.post("/v1/completions", json=BODY)).status_code == 503
                go_on.set()
                *chunks, done = frames([first, *[line async for line in lines]])
        assert done == "[DONE]"
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        async with asyncio.timeout(WAIT_S):
            _, log = await process.communicate()
        assert process.returncode == 0, log.decode()
        assert b"Traceback" not in log, log.decode()


async def test_sigterm_ends_what_takes_too_long_with_an_error(folder: Path) -> None:
    async with weight_node(folder, endless(LETTER)) as node:
        process, port = await start_process(folder, node.address, "--shutdown-timeout", "0.2")
        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
            client.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as response,
        ):
            lines = response.aiter_lines()
            first = await anext(lines)
            process.send_signal(signal.SIGTERM)
            *_, last = frames([first, *[line async for line in lines]])
        assert "shutting down" in last["error"]["message"]
        async with asyncio.timeout(WAIT_S):
            _, log = await process.communicate()
        assert process.returncode == 0
        assert b"Traceback" not in log, log.decode()
        await node.wait(lambda: len(node.cancelled) == 1)


async def test_a_port_that_is_taken_stops_the_start_with_a_clear_line(folder: Path) -> None:
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "kernelflume.router",
        "--model",
        str(folder),
        "--weight-nodes",
        "127.0.0.1:1",
        "--port",
        str(port),
        stderr=asyncio.subprocess.PIPE,
    )
    with contextlib.suppress(ProcessLookupError):
        async with asyncio.timeout(WAIT_S):
            _, log = await process.communicate()
    taken.close()
    assert process.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in log.decode()
