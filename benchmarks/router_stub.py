"""A bare engine for the router's benchmark: tokens at a fixed rate, over gRPC and over HTTP.

One clock ticks for all streams, as an engine's steps do. The HTTP side writes ready-made frames and is as
fast as a Python server can be, so that a gateway before it is measured, not the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kernelflume.checkpoint.source import resolve
from kernelflume.rpc.server import Server
from kernelflume.rpc.v1 import common_pb2, wnode_pb2, wnode_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SERVICE = "kernelflume.rpc.v1.WeightNode"
TOKEN_IDS = (253, 1234, 2345, 3456, 4567, 5678)
"""Of SmolLM2's vocabulary; whole words."""
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


class Ticker:
    """The steps: ``wait`` returns at the next one. The period may be changed at any time."""

    def __init__(self) -> None:
        self.period_s = 0.005
        self._next = asyncio.Event()

    async def run(self) -> None:
        """Tick for ever."""
        due = time.monotonic()
        while True:
            due = max(due + self.period_s, time.monotonic() - self.period_s)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            event, self._next = self._next, asyncio.Event()
            event.set()

    async def wait(self) -> None:
        """Wait for the next tick."""
        await self._next.wait()


class StubWeightNode(wnode_pb2_grpc.WeightNodeServicer):
    """Gives the first token at once and the others one a tick."""

    def __init__(self, model: str, ticker: Ticker, *, max_model_len: int) -> None:
        checkpoint = resolve(model)
        self._ticker = ticker
        self._card = wnode_pb2.ModelCard(
            geometry=common_pb2.KvGeometry(model_id=checkpoint.model_id, model_revision=checkpoint.revision),
            max_model_len=max_model_len,
            vocab_size=checkpoint.config.vocab_size,
            eos_token_ids=checkpoint.config.eos_token_ids,
        )

    async def Generate(  # noqa: N802 - gRPC's name
        self, request: wnode_pb2.GenerateRequest, context: Any
    ) -> AsyncIterator[wnode_pb2.GenerateEvent]:
        """Run a request."""
        del context
        last = request.sampling.max_tokens - 1
        for index in range(last):
            yield wnode_pb2.GenerateEvent(token_ids=[TOKEN_IDS[index % len(TOKEN_IDS)]])
            await self._ticker.wait()
        yield wnode_pb2.GenerateEvent(token_ids=[TOKEN_IDS[0]], finish_reason="length")

    async def Attach(self, messages: AsyncIterator[wnode_pb2.AttachRequest], context: Any) -> None:  # noqa: N802
        """Run a router's requests, with one message for all of them a tick."""
        runs: dict[int, int] = {}
        firsts: list[int] = []
        changed = asyncio.Event()

        async def read() -> None:
            async for message in messages:
                if message.HasField("submission"):
                    number = message.submission.number
                    runs[number] = message.submission.request.sampling.max_tokens
                    firsts.append(number)
                    changed.set()
                else:
                    runs.pop(message.cancelled, None)

        async def tick() -> None:
            while True:
                await self._ticker.wait()
                due.extend(runs)
                changed.set()

        due: list[int] = []
        tasks = [asyncio.create_task(read()), asyncio.create_task(tick())]
        try:
            await context.write(wnode_pb2.AttachReply())
            while True:
                await changed.wait()
                changed.clear()
                numbers = [*firsts, *due]
                firsts.clear()
                due.clear()
                reply = wnode_pb2.AttachReply()
                for number in numbers:
                    left = runs.get(number, 0)
                    if not left:
                        continue
                    token_id = TOKEN_IDS[left % len(TOKEN_IDS)]
                    if left > 1:
                        runs[number] = left - 1
                        reply.numbers.append(number)
                        reply.token_ids.append(token_id)
                        continue
                    del runs[number]
                    event = wnode_pb2.GenerateEvent(token_ids=[token_id], finish_reason="length")
                    reply.events.append(wnode_pb2.RequestEvent(number=number, event=event))
                if numbers:
                    await context.write(reply)
        finally:
            for task in tasks:
                task.cancel()

    async def GetLoad(self, request: Any, context: Any) -> wnode_pb2.WeightNodeLoad:  # noqa: N802
        """Say that there is room."""
        del request, context
        return wnode_pb2.WeightNodeLoad(max_num_waiting=100_000, prepared_nodes=["a-1#1"])

    async def GetModel(self, request: Any, context: Any) -> wnode_pb2.ModelCard:  # noqa: N802
        """Say which model it would be."""
        del request, context
        return self._card


class StubServer:
    """Chat completions as a bare stream of frames, and what gateways ask of a worker besides."""

    def __init__(self, ticker: Ticker) -> None:
        self._ticker = ticker
        self._frames = [_chunk(_frame(f" word{index}", finish=None)) for index in range(len(TOKEN_IDS))]
        self._end = _chunk(_frame(" end", finish="length") + b"data: [DONE]\n\n") + b"0\r\n\r\n"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection's requests."""
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ", 2)[1]
                length = next(
                    (
                        int(line.partition(b":")[2])
                        for line in head.lower().split(b"\r\n")
                        if line.startswith(b"content-length")
                    ),
                    0,
                )
                body = await reader.readexactly(length)
                if path == b"/v1/chat/completions":
                    await self._stream(writer, json.loads(body)["max_tokens"])
                elif path.startswith(b"/period/"):
                    self._ticker.period_s = float(path.rsplit(b"/", 1)[1])
                    writer.write(_whole({}))
                else:
                    writer.write(_whole({"object": "list", "data": [{"id": "smollm2", "object": "model"}]}))
                await writer.drain()
        writer.close()

    async def _stream(self, writer: asyncio.StreamWriter, max_tokens: int) -> None:
        writer.write(_HEAD + self._frames[0])
        for index in range(1, max_tokens - 1):
            await self._ticker.wait()
            writer.write(self._frames[index % len(self._frames)])
            await writer.drain()
        await self._ticker.wait()
        writer.write(self._end)


def _frame(text: str, *, finish: str | None) -> bytes:
    chunk = {
        "id": "chatcmpl-0123456789abcdef0123456789abcdef",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "smollm2",
        "choices": [{"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": finish}],
    }
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


def _chunk(content: bytes) -> bytes:
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"


def _whole(answer: Any) -> bytes:
    body = json.dumps(answer).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )


async def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--grpc-port", type=int, required=True)
    parser.add_argument("--http-port", type=int, required=True)
    parser.add_argument("--max-model-len", type=int, default=8192, help="context length that it tells")
    options = parser.parse_args()
    ticker = Ticker()
    server = Server(f"127.0.0.1:{options.grpc_port}", [SERVICE])
    node = StubWeightNode(options.model, ticker, max_model_len=options.max_model_len)
    wnode_pb2_grpc.add_WeightNodeServicer_to_server(node, server.grpc_server)
    await server.start()
    await server.set_serving(serving=True)
    await asyncio.start_server(StubServer(ticker).serve, "127.0.0.1", options.http_port, backlog=1024)
    await ticker.run()


if __name__ == "__main__":
    asyncio.run(main())
