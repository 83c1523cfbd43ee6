"""A process forked from this one, and the check that forking is safe."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

_TASKS = Path("/proc/self/task")


def num_threads() -> int:
    """Return the threads of this process, those of libraries included.

    A fork copies the calling thread alone: what the others had locked stays locked in the child for good. So
    only a process with one thread may fork and go on in Python.
    """
    return sum(1 for _ in _TASKS.iterdir())


class ForkedProcess:
    """A child that runs a function and ends. Has what is used of ``subprocess.Popen``, for any thread."""

    def __init__(self, main: Callable[[], None]) -> None:
        """Fork; the child runs ``main`` and ends with code 0, that of a SystemExit, or 1 and a traceback.

        Nothing else that was open or planned here is run there: no ``finally``, no ``atexit``.

        Raises:
            OSError: there is no memory or no process left.
        """
        self.returncode: int | None = None
        self._reaping = threading.Lock()
        self.pid = os.fork()
        if self.pid == 0:
            _become(main)

    def poll(self) -> int | None:
        """Return the exit code, -N for signal N, or None while the child runs."""
        with self._reaping:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs after ``timeout`` seconds.
        """
        with self._reaping:
            descriptor = os.pidfd_open(self.pid) if self.returncode is None else None
        if descriptor is not None:
            try:
                poll = select.poll()
                poll.register(descriptor, select.POLLIN)
                poll.poll(None if timeout is None else timeout * 1000)
            finally:
                os.close(descriptor)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        return code

    def kill(self) -> None:
        """End it at once, if it has not ended."""
        with self._reaping:
            if self.returncode is None:  # not reaped, so the number is still its own
                os.kill(self.pid, signal.SIGKILL)


def _become(main: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        main()
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - nothing of the parent's may run on in the child
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
