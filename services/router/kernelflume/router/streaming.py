"""Server-sent events over ASGI, and work that ends when its client goes away."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, TypeVar

from starlette.responses import Response

from kernelflume.router.errors import ClientGoneError
from kernelflume.router.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from starlette.types import Message, Receive, Scope, Send

    from kernelflume.runtime.clock import Clock

T = TypeVar("T")

DONE = "data: [DONE]\n\n"


def event(payload: str) -> str:
    """Return one event with a JSON payload (which has no line ends)."""
    return f"data: {payload}\n\n"


async def until_disconnect(
    receive: Receive, work: Coroutine[None, None, T], *, stalled: asyncio.Event | None = None
) -> T:
    """Run ``work`` to its end, unless the client goes away first: then it is cancelled.

    Args:
        receive: the request's messages; its body must have been read.
        work: what to run.
        stalled: set when the client does not read what it is sent; it then counts as gone.

    Raises:
        ClientGoneError: the client went away.
    """
    worker = asyncio.create_task(work)
    watchers = [asyncio.create_task(_wait_disconnect(receive))]
    if stalled is not None:
        watchers.append(asyncio.create_task(_wait_set(stalled)))
    try:
        await asyncio.wait((worker, *watchers), return_when=asyncio.FIRST_COMPLETED)
        if not worker.done():
            raise ClientGoneError("the client went away")
        return worker.result()
    finally:
        for watcher in watchers:
            watcher.cancel()
        if not worker.done():
            worker.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await worker


async def _wait_disconnect(receive: Receive) -> None:
    message: Message = {"type": ""}
    while message["type"] != "http.disconnect":
        message = await receive()


async def _wait_set(event_set: asyncio.Event) -> None:
    await event_set.wait()


class EventStreamResponse(Response):
    """Sends server-sent events as they come, and ends them when the client goes away or stops reading."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[str, None],
        *,
        write_timeout_s: float,
        slow_reader_timeout_s: float,
        clock: Clock,
        on_close: Callable[[], None],
        on_disconnect: Callable[[], None],
    ) -> None:
        """Make a response.

        Args:
            events: the events; closed at the end.
            write_timeout_s: bound of one wait for a client that does not read.
            slow_reader_timeout_s: bound of all such waits together: for one that reads, but slower than it
                is written to.
            clock: for these waits.
            on_close: called once at the end, however it came.
            on_disconnect: called before that if the client did not stay until the end.
        """
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._write_timeout_s = write_timeout_s
        self._slow_reader_timeout_s = slow_reader_timeout_s
        self._clock = clock
        self._on_close = on_close
        self._on_disconnect = on_disconnect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI gives it
        """Send the response."""
        stalled = asyncio.Event()
        watchdog = Watchdog(self._write_timeout_s, stalled.set)
        try:
            await until_disconnect(receive, self._send_all(send, watchdog), stalled=stalled)
        except ClientGoneError:
            self._on_disconnect()
        finally:
            watchdog.close()
            await self._events.aclose()
            self._on_close()

    async def _send_all(self, send: Send, watchdog: Watchdog) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        now, patience_s = self._clock.now, self._slow_reader_timeout_s
        async for text in self._events:
            began_at = now()
            watchdog.arm()
            # Returns at once unless the client is behind by more than the connection's buffers.
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            watchdog.disarm()
            patience_s -= now() - began_at
            if patience_s < 0:
                raise ClientGoneError("the client reads slower than it is written to")
        await send({"type": "http.response.body", "body": b"", "more_body": False})
