"""An OpenAI endpoint that streams what a test wants it to, byte by byte if need be."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class StubEndpoint:
    """What the endpoint does, and what it was asked."""

    answer: Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]
    asked: list[Asked] = field(default_factory=list)
    num_connections: int = 0
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while request := await _read(reader):
                if request.path == "/v1/models":
                    models = {"data": [{"id": "stub", "max_model_len": 4096}]}
                    writer.write(plain(200, json.dumps(models).encode()))
                else:
                    self.asked.append(request)
                    await self.answer(request, writer)
                await writer.drain()
                if writer.is_closing():
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    except asyncio.IncompleteReadError:
        return None
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    content = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(head[0].split()[1], headers, json.loads(content or b"{}"))


def plain(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(fields: Any) -> bytes:
    return b"data: " + (fields if isinstance(fields, bytes) else json.dumps(fields).encode()) + b"\n\n"


def whole_answer(request: Asked, *, cached: int | None = None) -> list[bytes]:
    """Return the events of an answer of as many tokens as asked for."""
    chat = request.path.endswith("/chat/completions")
    count = request.body["max_completion_tokens" if chat else "max_tokens"]
    prompt = request.body.get("prompt") or [0] * 20
    events: list[Any] = []
    for token in range(count):
        says = {"delta": {"content": "x "}} if chat else {"text": "x "}
        told = {"token_ids": [token + 50]} if request.body.get("return_token_ids") else {}
        events.append({"choices": [{"index": 0, **says, **told}]})
    usage: dict[str, Any] = {"prompt_tokens": len(prompt), "completion_tokens": count}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return [event(each) for each in [*events, {"choices": [], "usage": usage}, b"[DONE]"]]


async def stream(
    request: Asked, writer: asyncio.StreamWriter, *, extra: bytes = b"", cached: int | None = None
) -> None:
    """Answer in order and keep the connection."""
    writer.write(SSE_HEAD + extra + b"\r\n")
    for each in whole_answer(request, cached=cached):
        writer.write(chunk(each))
        await asyncio.sleep(0)
    writer.write(b"0\r\n\r\n")


@asynccontextmanager
async def stub_endpoint(
    answer: Callable[[Asked, asyncio.StreamWriter], Awaitable[None]] = stream,
) -> AsyncIterator[StubEndpoint]:
    stub = StubEndpoint(answer)
    server = await asyncio.start_server(stub.serve, "127.0.0.1", 0, limit=2**24)
    stub.port = server.sockets[0].getsockname()[1]
    try:
        yield stub
    finally:
        server.close()
