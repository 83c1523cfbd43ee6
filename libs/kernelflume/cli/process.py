"""One program of the stack as a child process: with its own log file, and an end within a bound."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING

from kernelflume.core.errors import ConfigurationError
from kernelflume.runtime.tether import tethered

if TYPE_CHECKING:
    from pathlib import Path

    from kernelflume.cli.parts import PartSpec


def log_path(log_dir: Path, spec: PartSpec) -> Path:
    """Return where a part's output goes."""
    return log_dir / f"{spec.name}.log"


class ManagedProcess:
    """A running part. Make it with ``start`` in the event loop of the main thread.

    It runs in a session of its own, so that a Ctrl-C in the terminal reaches the supervisor alone and the
    parts end in order; and it is tethered, so that it ends when the supervisor is killed.
    """

    def __init__(self, spec: PartSpec, process: asyncio.subprocess.Process, path: Path) -> None:
        self.spec = spec
        self.log_path = path
        self._process = process

    @classmethod
    async def start(cls, spec: PartSpec, log_dir: Path, *, again: bool = False) -> ManagedProcess:
        """Start the part with ``log_dir/<name>.log`` as its output: written anew, or ``again`` at its end.

        Raises:
            ConfigurationError: the log file cannot be written.
        """
        path = log_path(log_dir, spec)
        try:
            log = path.open("ab" if again else "wb")
        except OSError as error:
            raise ConfigurationError(f"log-dir: cannot write {path}: {error.strerror}") from error
        with log:
            process = await asyncio.create_subprocess_exec(
                *tethered(list(spec.command)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(spec, process, path)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code, the negative signal number if a signal ended it, or None while it runs."""
        return self._process.returncode

    async def wait_exit(self) -> int:
        """Wait for the end and return the exit code; the caller sets the bound."""
        return await self._process.wait()

    async def stop(self, *, within_s: float) -> bool:
        """Ask it to end, and kill it after ``within_s`` seconds; True if it ended in order."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(within_s):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()
            return False
        return True

    def kill(self) -> None:
        """Kill it and whatever it started in its session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
