"""The Ray actor around one attention node: it runs on a Ray node and holds the service as its child."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kernelflume.runtime.logfile import last_line
from kernelflume.runtime.tether import tethered


@dataclass(frozen=True, slots=True)
class Place:
    """Where Ray put an actor."""

    ray_node: str
    """Ray's id of the node."""
    host: str
    """Address under which other machines of the cluster reach it."""
    python: str
    """Interpreter that Ray runs there."""


class NodeHost:
    """An actor whose methods run in one event loop, in a thread that lives as long as the actor's process.

    That matters: the kernel ends the child with the thread that started it. The child has a process group of
    its own, so that nothing which it started is overlooked when it has to be killed.
    """

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._ended: asyncio.Task[str] | None = None
        self._stopped = False

    async def place(self) -> Place:
        """Return where this actor is."""
        import ray  # noqa: PLC0415 - only there where Ray runs; the class itself needs none of it

        context = ray.get_runtime_context()
        return Place(
            ray_node=context.get_node_id(), host=ray.util.get_node_ip_address(), python=sys.executable
        )

    async def run(self, command: list[str], log_path: str) -> str:
        """Start the service, wait for its end and return how it ended, its last log line included."""
        if self._stopped:
            return "was stopped before it started"
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
                )
        except OSError as error:
            return f"cannot be started: {error}"
        self._ended = asyncio.create_task(self._wait(self._process, path, start))
        if self._stopped:  # meanwhile
            self._signal(signal.SIGKILL)
        return await asyncio.shield(self._ended)

    async def wait(self) -> str:
        """Wait for the end of the service that runs here and return how it ended."""
        return await asyncio.shield(self._ended) if self._ended is not None else "was never started"

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
    async def _wait(process: asyncio.subprocess.Process, path: Path, start: int) -> str:
        code = await process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        line = last_line(path, start=start)
        return f"{how}{f': {line}' if line else ''} (log: {path})"


def _append(path: Path) -> BinaryIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab")
