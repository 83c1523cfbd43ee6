"""The Ray actor around one service: it runs on a Ray node and holds the service as its child."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from kernelflume.runtime.logfile import last_line
from kernelflume.runtime.tether import tethered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LOG_LOOK_S = 0.2
_LOG_PATIENCE_S = 10.0
"""Longest wait for a new line of a log before its reader is told that there is none."""
_LOG_CHUNK_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Place:
    """Where Ray put an actor."""

    ray_node: str
    """Ray's id of the node."""
    host: str
    """Address under which other machines of the cluster reach it."""
    python: str
    """Interpreter that Ray runs there."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a service ended."""

    how: str
    """In words, its last log line included."""
    code: int | None = None
    """Exit code, the negative signal number if a signal ended it, or None where it was no process's end."""


class ServiceHost:
    """An actor whose methods run in one event loop, in a thread that lives as long as the actor's process.

    That matters: the kernel ends the child with the thread that started it. The child has a process group of
    its own, so that nothing which it started is overlooked when it has to be killed.
    """

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._ended: asyncio.Task[Ending] | None = None
        self._stopped = False
        self._log: tuple[Path, int] | None = None
        """The log file, and where in it this service's output begins."""

    async def place(self) -> Place:
        """Return where this actor is."""
        import ray  # noqa: PLC0415 - only there where Ray runs; the class itself needs none of it

        context = ray.get_runtime_context()
        return Place(
            ray_node=context.get_node_id(), host=ray.util.get_node_ip_address(), python=sys.executable
        )

    async def missing(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Return those of some files and folders that cannot be read here."""
        return tuple(path for path in paths if not os.access(path, os.R_OK))

    async def run(self, command: list[str], log_path: str, environment: Mapping[str, str]) -> Ending:
        """Start the service, wait for its end and return how it ended.

        Args:
            command: its command line.
            log_path: file that its output is appended to; its folder is made.
            environment: variables that it gets besides those of the Ray node.
        """
        if self._stopped:
            return Ending("was stopped before it started")
        path = Path(log_path)
        try:
            with _append(path) as log:
                start = log.tell()
                self._process = await asyncio.create_subprocess_exec(
                    *tethered(command),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=asyncio.subprocess.STDOUT,
                    start_new_session=True,
                    env={**os.environ, **environment},
                )
        except OSError as error:
            return Ending(f"cannot be started: {error}")
        self._log = (path, start)
        self._ended = asyncio.create_task(self._wait(self._process, path, start))
        if self._stopped:  # meanwhile
            self._signal(signal.SIGKILL)
        return await asyncio.shield(self._ended)

    async def wait(self) -> Ending:
        """Wait for the end of the service that runs here and return how it ended."""
        return await asyncio.shield(self._ended) if self._ended is not None else Ending("was never started")

    async def read_log(self, start: int) -> bytes:
        """Return what the service wrote after its first ``start`` bytes, or nothing if it writes no more.

        Waits a while for more, but not once the service has ended.
        """
        waited_s = 0.0
        while True:
            # In this order: what it wrote before its end is not overlooked.
            is_last = self._ended is not None and self._ended.done()
            chunk = _read(self._log[0], self._log[1] + start) if self._log is not None else b""
            if chunk or is_last or waited_s >= _LOG_PATIENCE_S:
                return chunk
            await asyncio.sleep(_LOG_LOOK_S)
            waited_s += _LOG_LOOK_S

    async def stop(self, grace_s: float) -> None:
        """Send SIGTERM, after the grace SIGKILL to all that it started, and return once it is gone."""
        self._stopped = True
        if self._process is None or self._ended is None:
            return
        with suppress(ProcessLookupError):
            self._process.terminate()
        await asyncio.wait({self._ended}, timeout=grace_s)
        if not self._ended.done():
            self._signal(signal.SIGKILL)
            await asyncio.wait({self._ended})

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    @staticmethod
    async def _wait(process: asyncio.subprocess.Process, path: Path, start: int) -> Ending:
        code = await process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        line = last_line(path, start=start)
        return Ending(f"{how}{f': {line}' if line else ''} (log: {path})", code)


def _append(path: Path) -> BinaryIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab")


def _read(path: Path, start: int) -> bytes:
    try:
        with path.open("rb") as log:
            log.seek(start)
            return log.read(_LOG_CHUNK_BYTES)
    except OSError:
        return b""
