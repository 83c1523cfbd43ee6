"""Many streamed completions at once, with as little work a token as Python allows."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from dataclasses import dataclass, field

LIMIT_BYTES = 1 << 20
MODEL = "model"
"""Name that the model is served under."""


@dataclass(slots=True)
class TokenStreams:
    """When the tokens of every stream came, by ``time.perf_counter``."""

    arrivals: list[list[float]] = field(default_factory=list)

    @property
    def fewest(self) -> int:
        """Events of the stream that is least far."""
        return min(map(len, self.arrivals), default=0)

    @property
    def all_decode(self) -> tuple[float, float]:
        """The time in which every stream decoded."""
        return max(each[0] for each in self.arrivals), min(each[-1] for each in self.arrivals)

    def gaps(self, begin: float, end: float) -> list[float]:
        """Return the seconds between tokens, of every gap that overlaps a time."""
        return [
            later - earlier
            for each in self.arrivals
            for earlier, later in itertools.pairwise(each)
            if later > begin and earlier < end
        ]

    def tokens(self, begin: float, end: float) -> int:
        """Return how many tokens came in a time."""
        return sum(begin < at <= end for each in self.arrivals for at in each)


async def stream_all(
    port: int, prompts: list[list[int]], num_tokens: int, into: TokenStreams, *, timeout_s: float
) -> None:
    """Stream all prompts' completions; ``into`` grows while they run.

    Raises:
        SystemExit: a request was refused, or did not get all of its tokens.
        TimeoutError: they did not end in time.
    """
    into.arrivals.extend([] for _ in prompts)
    async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as tasks:
        for prompt, arrivals in zip(prompts, into.arrivals, strict=True):
            tasks.create_task(_stream(port, prompt, num_tokens, arrivals))


async def _stream(port: int, prompt: list[int], num_tokens: int, arrivals: list[float]) -> None:
    """Speak HTTP by hand: a client library takes longer for a token than the stack does."""
    fields = {"model": MODEL, "prompt": prompt, "max_tokens": num_tokens, "temperature": 0}
    fields |= {"ignore_eos": True, "return_token_ids": True, "stream": True}
    fields |= {"stream_options": {"include_usage": True}}
    body = json.dumps(fields).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=LIMIT_BYTES)
    try:
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        writer.write(body)
        await writer.drain()
        status = await reader.readline()
        if b" 200 " not in status:
            raise SystemExit(f"{status!r} {(await reader.read())[-500:]!r}")
        used = 0
        async for line in reader:
            # One event a write of the server, so that no chunk border lies within.
            if not line.startswith(b"data: {"):
                continue
            if b'"token_ids":[' in line and b'"token_ids":[]' not in line:
                arrivals.append(time.perf_counter())
            if b'"completion_tokens"' in line:
                used = json.loads(line[6:])["usage"]["completion_tokens"]
            if line.startswith(b'data: {"error"'):
                raise SystemExit(line.decode())
        if used != num_tokens:
            raise SystemExit(f"{used} tokens instead of {num_tokens}")
    finally:
        writer.close()
