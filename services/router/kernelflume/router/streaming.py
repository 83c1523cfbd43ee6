"""Server-sent events over ASGI, and work that ends when its client goes away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from starlette.responses import Response

from kernelflume.router.errors import ClientGoneError
from kernelflume.router.prepared import soon
from kernelflume.router.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping
    from types import TracebackType

    from starlette.types import Message, Receive, Scope, Send

    from kernelflume.runtime.clock import Clock

FRAME_END = "\n\n"
DONE = f"data: [DONE]{FRAME_END}"


def event(payload: str) -> str:
    """Return one event with a JSON payload (which has no line ends)."""
    return f"data: {payload}{FRAME_END}"


class ClientWatch:
    """Blocks of code, one after the other, that end with ClientGoneError when the client goes away first.

    A block runs in the task that it is in: a task of its own would have to be started, and its end waited
    for, before the first token is sent. The request's body must have been read. ``close`` it at the end.
    """

    def __init__(self, receive: Receive) -> None:
        """Watch for the end of a request's messages, from the first block on."""
        self._receive = receive
        self._is_gone = False
        self._is_closed = False
        self._task: asyncio.Task[Any] | None = None
        """Of the block; None outside of one."""
        self._num_cancelling = 0
        self._is_watching = False
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        """Begin a block.

        Raises:
            ClientGoneError: the client went away before it.
        """
        if self._is_gone:
            raise ClientGoneError("the client went away")
        self._task = asyncio.current_task()
        assert self._task is not None  # noqa: S101 - a coroutine is always run by one
        self._num_cancelling = self._task.cancelling()
        if not self._is_watching:
            self._is_watching = True
            soon(self._watch)
        return self

    def give_up(self) -> None:
        """Count the client as gone."""
        if self._is_gone or self._is_closed:
            return
        self._is_gone = True
        if self._task is not None:
            # The block is waiting for something, or about to go on from there, as this runs in another turn
            # of the event loop. So it is the block that is cancelled.
            self._task.cancel()

    def close(self) -> None:
        """Watch no longer."""
        self._is_closed = True
        if self._watcher is not None:
            self._watcher.cancel()

    def _watch(self) -> None:
        if not self._is_closed:
            self._watcher = asyncio.create_task(_wait_disconnect(self._receive))
            self._watcher.add_done_callback(lambda watcher: None if watcher.cancelled() else self.give_up())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the block.

        Raises:
            ClientGoneError: the client went away.
        """
        task, self._task = self._task, None
        if self._is_gone and task is not None:
            is_ours = task.uncancel() <= self._num_cancelling
            if is_ours and isinstance(error, asyncio.CancelledError):
                raise ClientGoneError("the client went away") from None


async def _wait_disconnect(receive: Receive) -> None:
    message: Message = {"type": ""}
    while message["type"] != "http.disconnect":
        message = await receive()


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
        headers: Mapping[str, str],
        on_close: Callable[[], None],
        on_disconnect: Callable[[], None],
        watch: ClientWatch | None = None,
    ) -> None:
        """Make a response.

        Args:
            events: the events; closed at the end.
            write_timeout_s: bound of one wait for a client that does not read.
            slow_reader_timeout_s: bound of all such waits together: for one that reads, but slower than it
                is written to.
            clock: for these waits.
            headers: of the response, besides those that every stream has.
            on_close: called once at the end, however it came.
            on_disconnect: called before that if the client did not stay until the end.
            watch: of the client, closed at the end; None: there is none yet.
        """
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers})
        del self.headers["content-length"]
        self._events = events
        self._write_timeout_s = write_timeout_s
        self._slow_reader_timeout_s = slow_reader_timeout_s
        self._clock = clock
        self._on_close = on_close
        self._on_disconnect = on_disconnect
        self._client_watch = watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI gives it
        """Send the response."""
        watch = self._client_watch or ClientWatch(receive)
        watchdog = Watchdog(self._write_timeout_s, watch.give_up)
        try:
            with watch:
                await self._send_all(send, watchdog)
        except ClientGoneError:
            self._on_disconnect()
        finally:
            watch.close()
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
