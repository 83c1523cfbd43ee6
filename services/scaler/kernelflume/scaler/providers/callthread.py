"""Blocking calls of client libraries, away from the event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from kernelflume.core.errors import DeadlineError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class CallThread:
    """One thread that makes calls one after another.

    A daemon, which the default executor's threads are not: a call that never returns does not hold up the
    end of the process. It lives until ``close``, which matters to libraries that start processes tied to the
    thread that asked for them.
    """

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def call(self, function: Callable[[], T], *, timeout_s: float) -> T:
        """Call ``function`` in the thread and return what it returns, or raise what it raises.

        Raises:
            DeadlineError: it did not return in time; if it has begun, it goes on and its result is dropped.
        """
        future: Future[T] = Future()
        self._queue.put((future, function))
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            if future.done() and not future.cancelled():
                return future.result()  # the call's own TimeoutError
            raise DeadlineError(f"no answer within {timeout_s:g} s") from None

    def close(self) -> None:
        """End the thread after the calls that were asked for; returns at once."""
        self._queue.put(None)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            future, function = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                future.set_exception(error)
