"""Keys, limits, fairness, CORS, request ids and bounds of the router, over real HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
from io import StringIO
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest
from tests.certificates import Identity, stamped
from tests.router_parts import (
    WAIT_S,
    Event,
    byte_level_tokenizer,
    endless,
    eventually,
    post,
    router,
    saying,
    weight_node,
    write_model,
)
from typer.testing import CliRunner

from kernelflume.cli.main import app
from kernelflume.core.errors import ConfigurationError
from kernelflume.router.httptls import HttpTls
from kernelflume.runtime.logging import JsonFormatter
from kernelflume.runtime.tls import TlsSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.certificates import Authority

LETTER = byte_level_tokenizer().encode("x").ids[0]
BODY = {"prompt": "a", "max_tokens": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def lines() -> Iterator[StringIO]:
    """What this process logs, as a service writes it."""
    stream = StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter("router"))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield stream
    root.setLevel(level)
    root.removeHandler(handler)


def keys(*arguments: str) -> str:
    """Run ``kernelflume keys`` and return its last line."""
    result = CliRunner().invoke(app, ["keys", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_a_key_of_a_file_lets_in_until_it_is_revoked(
    model: Path, tmp_path: Path, lines: StringIO
) -> None:
    path = tmp_path / "keys.json"
    key = keys("create", "alice", "--file", str(path))
    auth = {"keys_file": path, "refresh_interval": 0.02}
    async with (
        weight_node(model, saying(LETTER)) as node,
        router(model, [node], auth=auth) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        wrong = "kf-0123456789ab-" + "w" * 43
        for headers in (
            {},
            bearer(wrong),
            bearer("x"),
            {"authorization": key},
            {"authorization": f"Basic {key}"},
        ):
            refused = await client.post("/v1/completions", json=BODY, headers=headers)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
            error = refused.json()["error"]
            assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
            assert "x-request-id" in refused.headers
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/nowhere")).status_code == 401
        for path_name in ("/health", "/ready", "/metrics"):
            assert (await client.get(path_name)).status_code == 200
        assert (await client.post("/v1/completions", json=BODY, headers=bearer(key))).status_code == 200
        assert (
            await client.get("/v1/models", headers={"authorization": f"bearer  {key}"})
        ).status_code == 200

        other = keys("create", "bob", "--file", str(path))

        async def is_known() -> bool:
            return (await client.get("/v1/models", headers=bearer(other))).status_code == 200

        await eventually(is_known)
        keys("revoke", key.split("-")[1], "--file", str(path))

        async def is_revoked() -> bool:
            return (await client.get("/v1/models", headers=bearer(key))).status_code == 401

        await eventually(is_revoked)
        path.write_text("{")

        async def is_noticed() -> bool:
            return "cannot be read" in lines.getvalue()

        await eventually(is_noticed)
        assert (await client.get("/v1/models", headers=bearer(other))).status_code == 200
        metrics = (await client.get("/metrics")).text
        assert 'kernelflume_router_unauthenticated_total{reason="bad_key"}' in metrics
        assert 'kernelflume_router_unauthenticated_total{reason="no_key"}' in metrics
    logged = lines.getvalue()
    for secret in (key, other, wrong):
        assert secret not in logged
        assert secret.split("-", 2)[2] not in logged


async def test_the_official_client_s_key_is_checked_and_its_errors_are_typed(
    model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    key = keys("create", "alice", "--file", str(path), "--requests-per-minute", "1")
    async with (
        weight_node(model, saying(LETTER)) as node,
        router(model, [node], auth={"keys_file": path}) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client,
    ):
        answer = await client.completions.with_raw_response.create(model="tiny", prompt="a")
        assert answer.headers["x-ratelimit-limit-requests"] == "1"
        assert answer.headers["x-ratelimit-remaining-requests"] == "0"
        assert answer.headers["x-ratelimit-reset-requests"].endswith("s")
        with pytest.raises(openai.RateLimitError) as limited:
            await client.completions.create(model="tiny", prompt="a")
        assert limited.value.code == "rate_limit_exceeded"
        assert 0 < int(limited.value.response.headers["retry-after"]) <= 60
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="sk-wrong").models.list()


@pytest.mark.redis
async def test_keys_of_the_store_are_seen_by_a_router(model: Path, valkey_url: str) -> None:
    place = ("--redis-url", valkey_url, "--cluster", "keys-test")

    async def run_keys(*arguments: str) -> str:
        # In a thread: the command has an event loop of its own.
        return await asyncio.to_thread(keys, *arguments)

    key = await run_keys("create", "alice", *place, "--tokens-per-minute", "1000", "--weight", "2")
    settings = {"redis_url": valkey_url, "cluster": "keys-test"}
    auth = {"keys_in_store": True, "refresh_interval": 0.02}
    async with (
        weight_node(model, saying(LETTER)) as node,
        router(model, [node], auth=auth, **settings) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        answer = await client.post("/v1/completions", json=BODY, headers=bearer(key))
        assert answer.headers["x-ratelimit-limit-tokens"] == "1000"
        listed = json.loads(await run_keys("list", "--json", *place))
        assert [(item["name"], item["weight"]) for item in listed] == [("alice", 2.0)]
        assert key not in json.dumps(listed)
        await run_keys("revoke", key.split("-")[1], *place)

        async def is_revoked() -> bool:
            return (await client.get("/v1/models", headers=bearer(key))).status_code == 401

        await eventually(is_revoked)


async def test_a_store_that_is_away_is_no_open_door(model: Path) -> None:
    async with (
        weight_node(model, saying(LETTER)) as node,
        router(model, [node], auth={"keys_in_store": True}, redis_url="redis://127.0.0.1:1/0") as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/v1/models", headers=bearer("kf-x"))).status_code == 503
        assert (await client.get("/ready")).status_code == 200


async def test_waiting_requests_are_served_and_their_number_is_bounded(model: Path) -> None:
    go_on = asyncio.Event()

    async def script(request: Any) -> AsyncIterator[Any]:
        await go_on.wait()
        yield Event(token_ids=[LETTER], finish_reason="length")

    async with (
        weight_node(model, script) as node,
        router(model, [node], max_concurrent_requests=1, max_waiting_requests=1) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        asked = [asyncio.create_task(client.post("/v1/completions", json=BODY)) for _ in range(3)]
        done, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        [refused] = done
        assert refused.result().status_code == 429
        assert refused.result().headers["retry-after"] == "1"
        await node.wait(lambda: len(node.requests) == 1)
        go_on.set()
        assert {(await task).status_code for task in waiting} == {200}


async def test_a_request_waits_no_longer_than_it_may(model: Path) -> None:
    async with (
        weight_node(model, endless(LETTER)) as node,
        router(model, [node], max_concurrent_requests=1, queue_timeout=0.1) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
        client.stream("POST", "/v1/completions", json=BODY | {"stream": True, "max_tokens": 200}) as response,
    ):
        lines_of_first = response.aiter_lines()  # kept: without it the client would close the stream
        await anext(lines_of_first)
        refused = await client.post("/v1/completions", json=BODY)
        assert refused.status_code == 429
        assert "waited" in refused.json()["error"]["message"]
        metrics = (await client.get("/metrics")).text
        assert 'kernelflume_router_refusals_total{reason="queue_timeout"} 1.0' in metrics


async def test_requests_of_one_key_at_once_are_limited(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key, other = (keys("create", name, "--file", str(path)) for name in ("alice", "bob"))
    auth = {"keys_file": path, "concurrent_requests": 1}
    async with (
        weight_node(model, endless(LETTER)) as node,
        router(model, [node], auth=auth) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        body = BODY | {"stream": True, "max_tokens": 200}
        async with client.stream("POST", "/v1/completions", json=body, headers=bearer(key)) as response:
            lines_of_first = response.aiter_lines()  # kept: without it the client would close the stream
            await anext(lines_of_first)
            refused = await client.post("/v1/completions", json=BODY, headers=bearer(key))
            assert refused.status_code == 429
            assert refused.json()["error"]["code"] == "concurrency_limit_exceeded"
            async with client.stream("POST", "/v1/completions", json=body, headers=bearer(other)) as second:
                assert second.status_code == 200


async def test_large_bodies_of_one_key_leave_room_for_those_of_others(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    slow, other = (keys("create", name, "--file", str(path)) for name in ("slow", "other"))
    size = 1 << 17
    large = json.dumps(BODY).encode().ljust(size)

    is_sent = asyncio.Event()

    async def stalled() -> AsyncIterator[bytes]:
        yield large[: size // 2 + 4096]  # more than a small body, so that it takes its room
        is_sent.set()
        await asyncio.Event().wait()

    async with (
        weight_node(model, saying(LETTER)) as node,
        router(
            model,
            [node],
            auth={"keys_file": path},
            max_body_size=size,
            max_bodies_size=2 * size,
            body_timeout=2.0,
        ) as url,
        httpx.AsyncClient(base_url=url, timeout=30, headers={"content-type": "application/json"}) as client,
    ):
        headers = {"content-length": str(size), **bearer(slow)}
        holding = asyncio.create_task(client.post("/v1/completions", content=stalled(), headers=headers))
        try:
            await is_sent.wait()
            await client.get("/health")  # whose answer comes after the router has read what was sent before
            # The second would need more than the key's share: it waits for the first, in vain.
            refused = await client.post("/v1/completions", content=large, headers=bearer(slow))
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "2"
            assert "to be read" in refused.json()["error"]["message"]
            taken = await client.post("/v1/completions", content=large, headers=bearer(other))
            assert taken.status_code == 200, taken.text
        finally:
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)
        metrics = (await client.get("/metrics")).text
        assert 'kernelflume_router_refusals_total{reason="bodies_timeout"} 1.0' in metrics


class Held:
    """A run that stops after its first token until it is told to go on."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def __call__(self, request: Any) -> AsyncIterator[Any]:
        yield Event(token_ids=[LETTER])
        await self.go_on.wait()
        for _ in range(request.sampling.max_tokens - 2):
            yield Event(token_ids=[LETTER])
        yield Event(token_ids=[LETTER], finish_reason="length")


async def test_a_stream_outlives_its_key(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key = keys("create", "alice", "--file", str(path))
    script = Held()
    async with (
        weight_node(model, script) as node,
        router(model, [node], auth={"keys_file": path, "refresh_interval": 0.02}) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        body = BODY | {"stream": True, "stream_options": {"include_usage": True}}
        async with client.stream("POST", "/v1/completions", json=body, headers=bearer(key)) as response:
            parts = response.aiter_text()
            text = await anext(parts)
            keys("revoke", key.split("-")[1], "--file", str(path))

            async def is_revoked() -> bool:
                return (await client.get("/v1/models", headers=bearer(key))).status_code == 401

            await eventually(is_revoked)
            script.go_on.set()
            text += "".join([part async for part in parts])
        assert text.endswith("data: [DONE]\n\n")
        assert '"completion_tokens": 8' in text
        assert '"error"' not in text


async def test_a_limit_of_tokens_that_is_reached_in_mid_stream_counts_for_the_next_request(
    model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    key = keys("create", "alice", "--file", str(path), "--tokens-per-minute", "4")
    script = Held()
    script.go_on.set()
    async with (
        weight_node(model, script) as node,
        router(model, [node], auth={"keys_file": path}) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        body = BODY | {"stream": True, "stream_options": {"include_usage": True}}
        whole = await client.post("/v1/completions", json=body, headers=bearer(key))
        assert whole.status_code == 200
        assert whole.text.endswith("data: [DONE]\n\n")
        assert '"completion_tokens": 8' in whole.text
        refused = await client.post("/v1/completions", json=body, headers=bearer(key))
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.headers["x-ratelimit-remaining-tokens"] == "0"


@pytest.mark.parametrize(
    ("given", "kept"),
    [("abc-123.X:/=", True), ("", False), ("a b", False), ("x" * 129, False), ("naïve", False)],
)
async def test_a_request_id_is_repeated_if_it_can_be(
    model: Path, lines: StringIO, given: str, kept: bool
) -> None:
    async with (
        weight_node(model, saying(LETTER)) as node,
        router(model, [node]) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        headers = {b"x-request-id": given.encode("latin-1")}
        answer = await client.post("/v1/completions", json=BODY, headers=headers)
        shown = answer.headers["x-request-id"]
        assert (shown == given) == kept
        assert shown
        assert (await client.get("/nowhere", headers=headers)).headers["x-request-id"]
    logged = [json.loads(line) for line in lines.getvalue().splitlines()]
    own = [line for line in logged if line.get("request_id") == shown]
    assert {"choice ended", "request ended"} <= {line["message"] for line in own}
    assert next(line["status"] for line in own if line["message"] == "request ended") == 200


async def test_other_sites_may_call_only_where_they_are_named(model: Path) -> None:
    preflight = {"origin": "https://chat.example.org", "access-control-request-method": "POST"}
    async with weight_node(model, saying(LETTER)) as node:
        async with router(model, [node]) as url, httpx.AsyncClient(base_url=url) as client:
            answer = await client.options("/v1/completions", headers=preflight)
            assert not [name for name in answer.headers if name.startswith("access-control")]
        origins = ("https://chat.example.org",)
        async with (
            router(model, [node], cors_origins=origins) as url,
            httpx.AsyncClient(base_url=url) as client,
        ):
            allowed = await client.options("/v1/completions", headers=preflight)
            assert allowed.headers["access-control-allow-origin"] == origins[0]
            answer = await client.post("/v1/completions", json=BODY, headers={"origin": origins[0]})
            assert answer.headers["access-control-allow-origin"] == origins[0]
            assert "x-request-id" in answer.headers["access-control-expose-headers"]
            other = await client.options(
                "/v1/completions", headers=preflight | {"origin": "https://evil.example.org"}
            )
            assert "access-control-allow-origin" not in other.headers


async def talk(url: str, *pieces: bytes) -> bytes:
    """Send pieces, and return all that comes until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.02)
    async with asyncio.timeout(WAIT_S):
        answer = await reader.read()
    writer.close()
    return answer


HEAD = b"GET /health HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize(
    ("pieces", "status", "timeout_s"),
    [
        ((b"",), b"408", 0.3),
        ((HEAD,), b"408", 0.3),
        ((HEAD + b"\r\n" + HEAD,), b"200", 2.0),
        ((HEAD, *[b"x-fill: " + b"y" * 500 + b"\r\n"] * 4), b"431", 60.0),
        ((b"\x16\x03\x01 no HTTP\r\n\r\n",), b"400", 60.0),
    ],
)
async def test_a_head_that_never_ends_is_given_up(
    model: Path, pieces: tuple[bytes, ...], status: bytes, timeout_s: float
) -> None:
    bounds = {"head_timeout": timeout_s, "max_head_size": 1500}
    async with router(model, [], weight_nodes=("127.0.0.1:1",), **bounds) as url:
        answer = await talk(url, *pieces)
    assert answer.startswith(b"HTTP/1.1 " + status)
    if status != b"200":
        body = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert set(body["error"]) == {"message", "type", "param", "code"}
    else:
        assert b"HTTP/1.1 408" in answer


CHUNKED = HEAD.replace(b"GET /health", b"POST /v1/completions") + b"transfer-encoding: chunked\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        (CHUNKED + b"\r\nzz\r\n{}\r\n",),
        (CHUNKED + b"\r\n", b"5\r\n{", b'"a":1}\r\n'),
        (CHUNKED + b"\r\nffffffffffffffffff\r\n{}",),
        (CHUNKED.replace(b"chunked", b"gzip") + b"\r\n{}",),
        (CHUNKED + b"content-encoding: gzip\r\nconnection: close\r\n\r\n2\r\n{}\r\n0\r\n\r\n",),
    ],
)
async def test_a_body_that_is_sent_badly_is_answered(model: Path, pieces: tuple[bytes, ...]) -> None:
    async with router(model, [], weight_nodes=("127.0.0.1:1",)) as url:
        answer = await talk(url, *pieces)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1
    body = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert set(body["error"]) == {"message", "type", "param", "code"}


async def test_a_running_request_is_not_answered_for_another_that_is_none(model: Path) -> None:
    async with router(model, [], weight_nodes=("127.0.0.1:1",)) as url:
        ask = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n"
        answer = await talk(url, ask + b"{" * 5 + b"\x16\x03 no HTTP\r\n\r\n")
    assert b"Invalid HTTP request" not in answer


async def test_one_connection_too_many_is_closed(model: Path) -> None:
    async with router(model, [], weight_nodes=("127.0.0.1:1",), max_connections=1) as url:

        async def first_alone() -> bool:
            return (await talk(url, HEAD + b"connection: close\r\n\r\n")).startswith(b"HTTP/1.1 200")

        await eventually(first_alone)
        _, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        assert (await talk(url)).startswith(b"HTTP/1.1 503")
        writer.close()
        await eventually(first_alone)


async def test_a_reader_that_trickles_is_cut_off(tmp_path: Path) -> None:
    # A token with a long text: much to write at little cost, so that any machine writes faster than is read.
    folder = write_model(tmp_path)
    tokenizer = byte_level_tokenizer()
    tokenizer.add_tokens(["x" * 20_000])
    tokenizer.save(str(folder / "tokenizer.json"))
    flood = endless(tokenizer.get_vocab_size() - 1, pause_s=0.001)

    async with (
        weight_node(folder, flood) as node,
        router(folder, [node], slow_reader_timeout=0.5) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        with socket.socket() as slow:
            # Little is taken ahead of the reads.
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
            slow.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(slow, ("127.0.0.1", int(url.rsplit(":", 1)[1])))
            await loop.sock_sendall(slow, post(BODY | {"stream": True}))

            async def trickle() -> None:
                while await loop.sock_recv(slow, 4096):  # noqa: ASYNC110 - a pause, not a wait
                    await asyncio.sleep(0.02)

            reading = asyncio.create_task(trickle())
            await node.wait(lambda: len(node.cancelled) == 1)
            reading.cancel()
        # For the sake of the client, and not of too many tokens that wait for it.
        assert "client_disconnects_total 1.0" in (await client.get("/metrics")).text


async def test_a_node_that_makes_no_step_is_not_used(model: Path) -> None:
    async with (
        weight_node(model, saying(LETTER)) as node,
        router(model, [node], progress_timeout=0.2) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        node.load.num_requests_running = 1

        async def is_stuck() -> bool:
            return (await client.get("/ready")).status_code == 503

        await eventually(is_stuck)
        assert (await client.post("/v1/completions", json=BODY)).status_code == 503
        assert (await client.get("/health")).status_code == 200
        node.load.num_steps = 1
        node.load.num_requests_running = 0

        async def is_ready() -> bool:
            return (await client.get("/ready")).status_code == 200

        await eventually(is_ready)


def test_keys_are_kept_for_their_owner_and_commands_say_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key = keys("create", "alice", "--file", str(path), "--requests-per-minute", "5")
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    keys("create", "bob", "--file", str(path))
    assert path.stat().st_mode & 0o777 == 0o640
    listed = keys("list", "--file", str(path))
    assert "alice" in listed
    assert key not in listed
    assert [entry.name for entry in tmp_path.iterdir()] == ["keys.json"]
    runner = CliRunner()
    for arguments in (
        ["list"],
        ["list", "--file", "a", "--redis-url", "redis://x"],
        ["revoke", "none", "--file", str(path)],
        ["create", "", "--file", str(path)],
        ["create", "x", "--file", str(tmp_path / "no" / "keys")],
    ):
        assert runner.invoke(app, ["keys", *arguments]).exit_code != 0


async def test_https_uses_a_new_certificate_without_a_restart(
    model: Path, tmp_path: Path, authority: Authority
) -> None:
    first, second = authority.issue("first"), authority.issue("second")
    place = Identity(tmp_path / "cert.pem", tmp_path / "key.pem")

    def install(identity: Identity) -> None:
        stamped(identity.certificate, place.certificate)
        stamped(identity.key, place.key)

    install(first)
    settings = TlsSettings(certificate=place.certificate, key=place.key)
    tls = HttpTls(settings)
    context = ssl.create_default_context(cafile=authority.ca)
    async with weight_node(model, saying(LETTER)) as node:
        options = {"weight_nodes": (node.address,), "http_tls": settings}
        async with (
            router(model, [], **options) as url,
            httpx.AsyncClient(base_url=url.replace("http:", "https:"), verify=context, timeout=30) as client,
        ):

            async def is_ready() -> bool:
                return (await client.get("/ready")).status_code == 200

            await eventually(is_ready)
            body = BODY | {"stream": True}
            async with client.stream("POST", "/v1/completions", json=body) as response:
                assert [line async for line in response.aiter_lines()][-2] == "data: [DONE]"
            with pytest.raises(httpx.HTTPError):
                await httpx.AsyncClient().get(f"{url}/health")

    async def subject() -> str:
        server = await asyncio.start_server(
            lambda reader, writer: writer.close(), "127.0.0.1", ssl=tls.context
        )
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        certificate = writer.get_extra_info("peercert")
        writer.close()
        server.close()
        return str(certificate["subject"])

    assert "first" in await subject()
    place.certificate.write_bytes(b"no certificate")
    tls.refresh()
    assert "first" in await subject()
    install(second)
    tls.refresh()
    assert "second" in await subject()


def test_https_needs_a_certificate(authority: Authority) -> None:
    with pytest.raises(ConfigurationError, match="http-tls"):
        HttpTls(TlsSettings(ca=authority.ca))


async def test_keys_and_salts_keep_computed_prompts_apart(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    alice, bob = (keys("create", name, "--file", str(path)) for name in ("alice", "bob"))
    async with (
        weight_node(model, saying(LETTER)) as node,
        router(model, [node], auth={"keys_file": path, "refresh_interval": 0.02}) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        for key, salt in ((alice, None), (bob, None), (alice, "own"), (bob, "own"), (alice, None)):
            answer = await client.post(
                "/v1/completions", json=BODY | {"cache_salt": salt}, headers=bearer(key)
            )
            assert answer.status_code == 200
        salts = [request.cache_salt for request in node.requests]
        assert salts[0] == salts[4]
        assert len(set(salts)) == 4
        assert all(salts)


async def test_without_keys_requests_share_unless_they_ask_not_to(model: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "a"}]}
    async with (
        weight_node(model, saying(LETTER)) as node,
        router(model, [node]) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        for path, body in (
            ("completions", BODY),
            ("completions", BODY | {"cache_salt": "s"}),
            ("chat/completions", chat | {"cache_salt": "s"}),
            ("responses", {"input": "a", "cache_salt": "s"}),
        ):
            answer = await client.post(f"/v1/{path}", json=body)
            assert answer.status_code == 200
        assert [request.cache_salt for request in node.requests] == ["", ":s", ":s", ":s"]
        for salt in ("", "s" * 257, 5):
            refused = await client.post("/v1/completions", json=BODY | {"cache_salt": salt})
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "cache_salt"


async def test_weight_nodes_are_told_how_long_prompts_are_to_stay(model: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "a"}]}
    async with (
        weight_node(model, saying(LETTER)) as node,
        router(model, [node]) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        bodies: dict[str, dict[str, Any]] = {
            "completions": BODY,
            "chat/completions": chat,
            "responses": {"input": "a"},
        }
        for path, body in bodies.items():
            for retention in ("24h", "in_memory", None):
                answer = await client.post(f"/v1/{path}", json=body | {"prompt_cache_retention": retention})
                assert answer.status_code == 200
                if path == "responses":
                    assert answer.json()["prompt_cache_retention"] == retention
            for refused in ("in-memory", "1h", "", 24):
                answer = await client.post(f"/v1/{path}", json=body | {"prompt_cache_retention": refused})
                assert answer.status_code == 400
                assert answer.json()["error"]["param"] == "prompt_cache_retention"
        assert [request.cache_retention for request in node.requests] == ["24h", "in_memory", ""] * 3
