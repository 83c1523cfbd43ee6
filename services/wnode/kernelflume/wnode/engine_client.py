"""The shell's end of the engine's pipe: starts the process, sends commands, hands out events."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import threading
from typing import TYPE_CHECKING

from kernelflume.core.errors import DeadlineError, UnavailableError
from kernelflume.wnode.messages import Command, EngineArguments, EngineFailed, EngineReady, Event, Stop

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

_STOP_TIMEOUT_S = 5.0
_SPIN_COUNT = "2000"
"""Some ten microseconds: from one operation of a layer to the next, not longer (benchmarks/results)."""


class EngineClient:
    """One engine process. Events reach ``on_event`` in the event loop's thread, in order."""

    def __init__(self, arguments: EngineArguments) -> None:
        self._arguments = arguments
        self._connection: Connection | None = None
        self._process: BaseProcess | None = None
        self._send_lock = threading.Lock()
        self._ready: asyncio.Future[EngineReady] | None = None
        self._on_event: Callable[[Event], None] | None = None
        self.failed = asyncio.Event()
        self.failure = ""

    async def start(self, on_event: Callable[[Event], None], *, timeout_s: float) -> EngineReady:
        """Start the process and wait until its model is loaded.

        Raises:
            UnavailableError: the engine ended instead; the message says why.
            DeadlineError: it was not ready in time.
        """
        self._on_event = on_event
        # Read when the child loads OpenMP. With the default, a kernel thread that waits for the next parallel
        # region spins for milliseconds on the core that an attention node needs by then.
        os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_run_engine, args=(theirs, self._arguments), daemon=True)
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        self._process.start()
        theirs.close()
        threading.Thread(target=self._read, args=(loop,), name="engine-events", daemon=True).start()
        try:
            return await asyncio.wait_for(asyncio.shield(self._ready), timeout_s)
        except TimeoutError:
            raise DeadlineError(f"the engine was not ready within {timeout_s:g} s") from None

    def send(self, command: Command) -> None:
        """Send one command; the engine always drains its end, so this does not block for long.

        Raises:
            UnavailableError: the engine is gone.
        """
        if self._connection is None:
            raise UnavailableError("the engine was not started")
        try:
            with self._send_lock:
                self._connection.send(command)
        except OSError as error:
            raise UnavailableError(f"the engine is gone: {self.failure or error}") from error

    async def stop(self) -> None:
        """End the process, by force if it does not obey in time."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(UnavailableError):  # it ended before
            self.send(Stop())
        await asyncio.to_thread(process.join, _STOP_TIMEOUT_S)
        if process.is_alive():
            process.kill()
            await asyncio.to_thread(process.join, _STOP_TIMEOUT_S)

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._connection is not None  # noqa: S101 - start made it
        try:
            while True:
                event: Event = self._connection.recv()
                loop.call_soon_threadsafe(self._deliver, event)
        except (EOFError, OSError):
            failure = EngineFailed("the engine process ended")
        try:
            loop.call_soon_threadsafe(self._deliver, failure)
        except RuntimeError:  # the loop is closed: the shell is ending too
            return

    def _deliver(self, event: Event) -> None:
        assert self._ready is not None  # noqa: S101 - start made both
        assert self._on_event is not None  # noqa: S101
        if isinstance(event, EngineFailed):
            self.failure = self.failure or event.reason
            self.failed.set()
            if not self._ready.done():
                self._ready.set_exception(UnavailableError(event.reason))
        elif isinstance(event, EngineReady) and not self._ready.done():
            self._ready.set_result(event)
        self._on_event(event)


def _run_engine(connection: Connection, arguments: EngineArguments) -> None:
    # A Ctrl-C reaches every process of the terminal; the shell ends this one in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from kernelflume.wnode.engine_process import run_engine  # noqa: PLC0415 - torch stays out of the shell

    run_engine(connection, arguments)
