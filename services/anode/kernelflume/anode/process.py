"""The shell's end of the control pipe: sets the worker going, calls it, and notices when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
from typing import TYPE_CHECKING, Any, TypeVar

from kernelflume.anode.control import (
    Answer,
    Call,
    Failed,
    Order,
    Ready,
    Stop,
    WorkerConfig,
)
from kernelflume.core.errors import DeadlineError, KernelFlumeError, OverloadedError, UnavailableError

if TYPE_CHECKING:
    from kernelflume.anode.control import Result
    from kernelflume.anode.launch import LaunchedWorker

logger = logging.getLogger(__name__)

R = TypeVar("R")

MAX_CALLS = 64
"""Calls under way at once; they are few, and a pipe holds that many."""


class WorkerProcess:
    """One worker. Make it with ``start``, in an event loop."""

    def __init__(self, launched: LaunchedWorker) -> None:
        self._process = launched.process
        self._control = launched.control
        self._calls: dict[int, asyncio.Future[Result]] = {}
        self._last_call_id = 0
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Ready] = loop.create_future()
        self._ended = asyncio.Event()
        loop.add_reader(self._control.fileno(), self._receive)

    @classmethod
    async def start(
        cls, launched: LaunchedWorker, config: WorkerConfig, *, timeout_s: float
    ) -> tuple[WorkerProcess, Ready]:
        """Tell a worker what it is and wait until it is ready to serve.

        Raises:
            KernelFlumeError: what the worker says keeps it from starting.
            UnavailableError: it ended without a word.
            DeadlineError: it was not ready in time.
        """
        worker = cls(launched)
        try:
            launched.control.send(config)
            return worker, await asyncio.wait_for(asyncio.shield(worker._ready), timeout_s)
        except BaseException as error:
            await worker.stop(timeout_s=0)
            if isinstance(error, TimeoutError):
                raise DeadlineError(f"the worker was not ready within {timeout_s:g} s") from None
            if isinstance(error, OSError):
                raise UnavailableError(f"the worker cannot be reached: {error}") from error
            raise

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    async def call(self, order: Order, expected: type[R], *, timeout_s: float) -> R:
        """Give an order and wait for its result.

        Raises:
            KernelFlumeError: what the worker answered instead.
            UnavailableError: the worker is gone.
            DeadlineError: it did not answer in time.
        """
        if self._ended.is_set():
            raise UnavailableError("the worker process has ended")
        if len(self._calls) >= MAX_CALLS:
            raise OverloadedError(f"{MAX_CALLS} control calls are under way")
        self._last_call_id += 1
        call_id = self._last_call_id
        future = self._calls[call_id] = asyncio.get_running_loop().create_future()
        try:
            self._control.send(Call(call_id, order))
            result = await asyncio.wait_for(future, timeout_s)
        except OSError as error:
            raise UnavailableError(f"the worker cannot be reached: {error}") from error
        except TimeoutError:
            raise DeadlineError(f"the worker did not answer within {timeout_s:g} s") from None
        finally:
            self._calls.pop(call_id, None)
        if not isinstance(result, expected):
            raise UnavailableError(f"the worker answered with {type(result).__name__}")
        return result

    async def wait_ended(self) -> str:
        """Wait until the worker has ended by itself; return how."""
        await self._ended.wait()
        code = await asyncio.to_thread(self._process.wait)
        return f"the worker process ended with code {code}; its log says why"

    async def stop(self, *, timeout_s: float) -> None:
        """Ask the worker to end, and kill it if it does not."""
        asyncio.get_running_loop().remove_reader(self._control.fileno())
        with contextlib.suppress(OSError):
            self._control.send(Stop())
        try:
            await asyncio.to_thread(self._process.wait, timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        self._lose()
        self._control.close()

    def _receive(self) -> None:
        try:
            while self._control.poll():
                self._take(self._control.recv())
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._lose()

    def _take(self, message: Ready | Failed | Answer) -> None:
        match message:
            case Ready():
                self._ready.set_result(message)
            case Failed(error):
                self._ready.set_exception(error)
            case Answer(call_id, result):
                future = self._calls.get(call_id)
                if future is None or future.done():
                    logger.warning("the worker answered call %d too late", call_id)
                elif isinstance(result, KernelFlumeError):
                    future.set_exception(result)
                else:
                    future.set_result(result)

    def _lose(self) -> None:
        self._ended.set()
        error = UnavailableError("the worker process has ended")
        waiting: list[asyncio.Future[Any]] = [self._ready, *self._calls.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(error)
        # Nobody may be waiting any more; an exception that nobody reads would be logged as an error.
        self._ready.exception()
