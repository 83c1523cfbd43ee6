"""Clients that leave and clients that do not read, at 64 streams of a served stack: nothing of them stays."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import psutil
import pytest
from tests.router_parts import eventually
from tests.stack import Stack, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(600)]

NUM_STREAMS = 64
PROMPT = "The sky is blue because"
NUM_TOKENS = 12


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with serve(tmp_path_factory.mktemp("logs"), "--attention-nodes", "2") as served:
        yield served


async def ask(stack: Stack, body: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a completion's request on a connection of its own, whose socket takes in little unread."""
    host, port = stack.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=4096)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
    writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + body)
    await writer.drain()
    return reader, writer


def streamed(number: int) -> bytes:
    body = {"prompt": f"{number} {PROMPT}", "max_tokens": 400, "stream": True, "ignore_eos": True}
    return json.dumps(body | {"logprobs": 20, "return_token_ids": True}).encode()


async def leave(stack: Stack, number: int) -> None:
    """Go away at another moment for every number: in the head, before an answer, after some of its frames."""
    reader, writer = await ask(stack, streamed(number)[: -1 if number % 4 == 0 else None])
    try:
        if number % 4 > 1:
            for _ in range(number):
                await reader.readline()
        if number % 8 == 7:
            writer.transport.abort()
    finally:
        writer.close()


async def read_nothing_and_leave(stack: Stack, number: int, left: asyncio.Event) -> None:
    """Read the head of an answer and nothing else until the others are gone; then leave."""
    reader, writer = await ask(stack, streamed(number))
    try:
        await reader.readuntil(b"\r\n\r\n")
        await left.wait()
    finally:
        writer.close()


def resources(stack: Stack) -> tuple[set[int], int]:
    """Return the processes of the stack, and how many connections its router has."""
    processes = stack.descendants
    router = next(process for process in processes if "kernelflume.router" in " ".join(process.cmdline()))
    port = int(stack.url.rpartition(":")[2])
    open_ones = [
        c
        for c in router.net_connections("tcp")
        if c.laddr.port == port and c.status == psutil.CONN_ESTABLISHED
    ]
    return {process.pid for process in processes}, len(open_ones)


def complaints(stack: Stack) -> list[str]:
    """Return the lines of all logs that tell of what should never happen."""
    return [
        line
        for path in stack.log_dir.glob("*.log")
        for line in path.read_text(errors="replace").splitlines()
        if "Traceback" in line or '"level": "error"' in line
    ]


async def test_streams_that_are_left_or_not_read_leave_nothing_behind(stack: Stack) -> None:
    expected = await stack.generate(PROMPT, NUM_TOKENS)
    before, _ = resources(stack)
    left = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for number in range(NUM_STREAMS // 4):
            tasks.create_task(read_nothing_and_leave(stack, number, left))
        async with asyncio.TaskGroup() as leaving:
            for number in range(NUM_STREAMS * 3 // 4):
                leaving.create_task(leave(stack, number))
            # One among them that behaves is served as ever.
            well = leaving.create_task(stack.generate(PROMPT, NUM_TOKENS))
        left.set()
    assert well.result() == expected
    await stack.wait_baseline()
    assert await stack.generate(PROMPT, NUM_TOKENS) == expected

    async def are_as_before() -> bool:
        return resources(stack) == (before, 0)

    await eventually(are_as_before)
    assert complaints(stack) == []
    assert stack.process.poll() is None
