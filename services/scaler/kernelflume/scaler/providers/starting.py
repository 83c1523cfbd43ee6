"""The two ways to start an attention node on this machine: an interpreter of its own, or a fork."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Protocol

from kernelflume.core.errors import KernelFlumeError, UnavailableError
from kernelflume.runtime.tether import tethered

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.scaler.providers.forking import ForkServerProcess

logger = logging.getLogger(__name__)


class NodeProcess(Protocol):
    """One running node."""

    @property
    def pid(self) -> int:
        """Process id."""
        ...

    @property
    def exited(self) -> asyncio.Task[int | None]:
        """Done when the process has ended: its exit code, or None where nobody can tell any more."""
        ...

    def terminate(self) -> None:
        """Send SIGTERM, if it has not ended."""
        ...

    def kill(self) -> None:
        """Send SIGKILL, if it has not ended."""
        ...


class Starter(Protocol):
    """Starts processes that end with this one."""

    async def start(self, node_id: str, log: IO[bytes]) -> NodeProcess:
        """Start a node that writes to ``log``.

        Raises:
            UnavailableError: it cannot be started.
        """
        ...

    async def close(self) -> None:
        """Give back what is kept for starting; called when the nodes have ended."""
        ...


class SpawnedNode:
    """A child of this process; see ``NodeProcess``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        # Reaps the process, so that it never stays as a zombie.
        self._exited = asyncio.create_task(process.wait(), name=f"reap {process.pid}")

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def exited(self) -> asyncio.Task[int | None]:
        """See ``NodeProcess``."""
        return self._exited

    def terminate(self) -> None:
        """Send SIGTERM."""
        with suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL."""
        with suppress(ProcessLookupError):
            self._process.kill()


class SpawnStarter:
    """Runs a command for each node; the kernel ends it with this process."""

    def __init__(self, command: Callable[[str], list[str]]) -> None:
        """Start a node by ``command``: node id -> the command line of that node."""
        self._command = command

    async def start(self, node_id: str, log: IO[bytes]) -> SpawnedNode:
        """Run the command; see ``Starter``."""
        try:
            process = await asyncio.create_subprocess_exec(
                *tethered(self._command(node_id)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:
            raise UnavailableError(str(error)) from error
        return SpawnedNode(process)

    async def close(self) -> None:
        """Nothing is kept."""


class ForkStarter:
    """Has a fork server make each node; spawns the ones that it cannot make, and says so in the log."""

    def __init__(
        self, server: ForkServerProcess, arguments: Callable[[str], list[str]], otherwise: SpawnStarter
    ) -> None:
        """Make a starter.

        Args:
            server: forks nodes; owned by this starter from now on.
            arguments: node id -> the command line of that node, without the program.
            otherwise: how a node is started while the server cannot.
        """
        self._server = server
        self._arguments = arguments
        self._otherwise = otherwise

    async def start(self, node_id: str, log: IO[bytes]) -> NodeProcess:
        """Fork, or spawn; see ``Starter``."""
        try:
            return await self._server.fork(self._arguments(node_id), log)
        except KernelFlumeError as error:
            logger.warning("attention node %s is started without the fork server, slowly: %s", node_id, error)
            return await self._otherwise.start(node_id, log)

    async def close(self) -> None:
        """End the fork server."""
        await self._server.close()
