"""Starting the worker's process: forked where torch is loaded already, else an interpreter of its own.

Imports next to nothing, so that the worker loads torch while the shell still loads gRPC.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kernelflume.runtime.tether import tether_to_parent, tethered

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

WORKER_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Read when torch loads: threads that wait by spinning would take the core that a weight node needs."""


class Process(Protocol):
    """What is needed of a child; as ``subprocess.Popen`` has it."""

    @property
    def pid(self) -> int:
        """Process id."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return the code; raises ``subprocess.TimeoutExpired``."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


@dataclass(frozen=True, slots=True)
class LaunchedWorker:
    """A worker that waits for its ``WorkerConfig``. It ends with the thread that launched it."""

    process: Process
    control: Connection


def spawn_worker() -> LaunchedWorker:
    """Start a worker as an interpreter of its own. Call it from the main thread."""
    ours, theirs = multiprocessing.Pipe()
    command = tethered([sys.executable, "-m", "kernelflume.anode.worker", str(theirs.fileno())])
    process = subprocess.Popen(  # noqa: S603 - our own interpreter
        command,
        pass_fds=[theirs.fileno()],
        env={**WORKER_ENVIRONMENT, **os.environ},
        stdin=subprocess.DEVNULL,
    )
    theirs.close()
    return LaunchedWorker(process, ours)


def fork_worker(run: Callable[[Connection], None], *, unneeded: int) -> LaunchedWorker:
    """Fork a worker from this process, which must have one thread.

    Args:
        run: the worker's life on its end of the control pipe.
        unneeded: descriptor that is of no use to the worker.
    """
    from kernelflume.runtime.forked import ForkedProcess  # noqa: PLC0415 - of no use to a spawned worker

    ours, theirs = multiprocessing.Pipe()
    shell_pid = os.getpid()

    def main() -> None:
        ours.close()
        os.close(unneeded)
        tether_to_parent(shell_pid)
        run(theirs)

    process = ForkedProcess(main)
    theirs.close()
    return LaunchedWorker(process, ours)
