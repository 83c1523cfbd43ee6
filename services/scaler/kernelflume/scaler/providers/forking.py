"""The owner's end of a fork server, which has loaded what an attention node needs: runtime.forkserver."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from kernelflume.core.errors import DeadlineError, KernelFlumeError, UnavailableError
from kernelflume.runtime.forkserver import Message, make_pair, receive, send
from kernelflume.runtime.logfile import last_line
from kernelflume.runtime.tether import tethered

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)

_LOAD_TIMEOUT_S = 60.0
"""Until it has imported everything: two seconds where nothing else runs."""
_ANSWER_TIMEOUT_S = 10.0
"""Far longer than a fork takes."""
_RETRY_S = 2.0
"""Wait before a fork server is started in place of one that ended."""


class ForkedNode:
    """A child of the fork server; see ``NodeProcess``. It outlives the server, and ends with its lifeline."""

    def __init__(self, pid: int, handle: int, lifeline: int, connection: _Connection) -> None:
        self._pid = pid
        self._handle = handle
        self._lifeline = lifeline
        self._connection = connection
        self._exited = asyncio.create_task(self._wait(), name=f"wait for {pid}")

    @property
    def pid(self) -> int:
        """Process id."""
        return self._pid

    @property
    def exited(self) -> asyncio.Task[int | None]:
        """See ``NodeProcess``."""
        return self._exited

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._handle >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    async def _wait(self) -> int | None:
        try:
            await _readable(self._handle)
        finally:
            handle, self._handle = self._handle, -1
            os.close(handle)
            os.close(self._lifeline)
        try:
            answer, _ = await self._connection.ask({"exit_code": self._pid})
        except KernelFlumeError:
            return None
        code: int | None = answer["exit_code"]
        return code


class _Connection:
    """One running fork server."""

    def __init__(self, process: asyncio.subprocess.Process, end: socket.socket) -> None:
        self._process = process
        self._end = end
        self._last_id = 0
        self._lock = asyncio.Lock()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    async def greeting(self) -> None:
        """Wait until it can fork.

        Raises:
            KernelFlumeError: it ended, or takes too long.
        """
        async with self._lock:
            await self._answer(0, _LOAD_TIMEOUT_S)

    async def ask(self, request: Message, descriptors: Sequence[int] = ()) -> tuple[Message, list[int]]:
        """Return the answer to a request, and its descriptors, which the caller owns.

        Raises:
            UnavailableError: it refuses, or has ended.
            DeadlineError: it does not answer.
        """
        async with self._lock:
            self._last_id += 1
            try:
                send(self._end, {"id": self._last_id, **request}, descriptors)
            except OSError as error:
                raise UnavailableError(f"the fork server is gone: {error.strerror}") from error
            answer, received = await self._answer(self._last_id, _ANSWER_TIMEOUT_S)
        if "error" in answer:
            raise UnavailableError(f"the fork server refuses: {answer['error']}")
        return answer, received

    async def _answer(self, request_id: int, timeout_s: float) -> tuple[Message, list[int]]:
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    await _readable(self._end.fileno())
                    try:
                        received = receive(self._end)
                    except OSError as error:
                        raise UnavailableError(f"the fork server is gone: {error.strerror}") from error
                    if received is None:
                        raise UnavailableError("the fork server has ended")
                    answer, descriptors = received
                    if answer["id"] == request_id:
                        return answer, descriptors
                    # Of a request that was given up; a node of it ends, as its lifeline is closed.
                    for descriptor in descriptors:
                        os.close(descriptor)
        except TimeoutError:
            raise DeadlineError(f"the fork server does not answer within {timeout_s:g} s") from None

    async def wait_ended(self) -> int:
        """Wait for the process's end; return its exit code."""
        return await self._process.wait()

    def kill(self) -> None:
        """End the process at once; what it forked goes on."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        """End the process and forget it."""
        self.kill()
        await self._process.wait()
        async with self._lock:  # who still waits for an answer sees the end first
            self._end.close()


class ForkServerProcess:
    """Starts a fork server at the first fork, and another whenever one ends. One event loop."""

    def __init__(self, command: Sequence[str], *, log_path: Path) -> None:
        """Make a client without a server.

        Args:
            command: how a server is started; the descriptor of its end of the connection is added.
            log_path: where its log goes.
        """
        self._command = command
        self._log_path = log_path
        self._connection: asyncio.Future[_Connection] | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def fork(self, arguments: list[str], log: IO[bytes]) -> ForkedNode:
        """Fork a process with these arguments that writes to ``log``; waits for a server that still loads.

        Raises:
            KernelFlumeError: there is no server at the moment, or it cannot fork.
        """
        if self._connection is None or self._keeper is None:
            self._connection = asyncio.get_running_loop().create_future()
            self._keeper = asyncio.create_task(self._keep(), name="fork server")
        connection = await asyncio.shield(self._connection)
        theirs, ours = os.pipe()
        try:
            answer, [handle] = await connection.ask({"fork": arguments}, [log.fileno(), theirs])
        except BaseException as error:
            os.close(ours)
            if isinstance(error, DeadlineError):  # it hangs: the next one may not
                connection.kill()
            raise
        finally:
            os.close(theirs)
        return ForkedNode(answer["pid"], handle, ours, connection)

    async def close(self) -> None:
        """End the server; no other call may follow."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)

    async def _keep(self) -> None:
        while True:
            reason = await self._serve_once()
            logger.warning("fork server: %s; another is started in %g s", reason, _RETRY_S)
            self._connection = asyncio.get_running_loop().create_future()
            _fail(self._connection, reason)
            await asyncio.sleep(_RETRY_S)
            self._connection = asyncio.get_running_loop().create_future()

    async def _serve_once(self) -> str:
        """Run one server to its end; return why it ended."""
        assert self._connection is not None  # noqa: S101 - made before the keeper
        waiting = self._connection
        log_start = self._log_path.stat().st_size if self._log_path.exists() else 0
        connection: _Connection | None = None
        reason = "it was closed"
        try:
            connection = await self._start()
            await connection.greeting()
            logger.info("the fork server is ready as process %s, log %s", connection.pid, self._log_path)
            waiting.set_result(connection)
            reason = f"it ended with code {await connection.wait_ended()}"
        except (OSError, KernelFlumeError) as error:
            line = last_line(self._log_path, start=log_start)
            reason = f"{error}{f': {line}' if line else ''}"
        finally:
            if not waiting.done():
                _fail(waiting, reason)
            if connection is not None:
                await connection.close()
        return reason

    async def _start(self) -> _Connection:
        ours, theirs = make_pair()
        ours.setblocking(False)
        try:
            self._log_path.parent.mkdir(parents=True, exist_ok=True)
            with self._log_path.open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *tethered([*self._command, str(theirs.fileno())]),
                    pass_fds=[theirs.fileno()],
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=asyncio.subprocess.STDOUT,
                )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return _Connection(process, ours)


def _fail(future: asyncio.Future[_Connection], reason: str) -> None:
    future.set_exception(UnavailableError(reason))
    future.exception()  # nobody may be waiting


async def _readable(descriptor: int) -> None:
    """Wait until a descriptor can be read."""
    loop = asyncio.get_running_loop()
    readable = loop.create_future()

    def on_readable() -> None:
        loop.remove_reader(descriptor)
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(descriptor, on_readable)
    try:
        await readable
    finally:
        loop.remove_reader(descriptor)
