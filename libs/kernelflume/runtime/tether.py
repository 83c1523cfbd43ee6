"""Run a command that the kernel ends with SIGTERM as soon as the process that started it is gone.

For programs that know nothing of it, such as a Redis server, and without a moment in which the parent's
death goes unnoticed: the request survives ``exec``, and a parent that died before it was made is seen by its
process id. Only the standard library is imported, so that it costs a few milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def tether_to_parent(parent_pid: int | None = None) -> None:
    """Make the kernel end this process with SIGTERM as soon as its parent *thread* ends, however it ends.

    Args:
        parent_pid: the parent as the child was told; if it is already gone the process exits at once.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if parent_pid is not None and os.getppid() != parent_pid:
        raise SystemExit(0)


def tethered(command: list[str]) -> list[str]:
    """Return ``command`` so wrapped that it ends with the calling process. Start it from the main thread."""
    # -S and -E: neither site packages nor PYTHON* variables are needed before the exec.
    return [sys.executable, "-S", "-E", __file__, str(os.getpid()), *command]


def main(arguments: list[str]) -> None:
    """Tether this process to the parent in ``arguments[0]`` and become the command in the rest."""
    tether_to_parent(int(arguments[0]))
    try:
        os.execvp(arguments[1], arguments[1:])  # noqa: S606 - becoming that command is the purpose
    except OSError as error:
        raise SystemExit(f"cannot run {arguments[1]}: {error.strerror}") from error


if __name__ == "__main__":
    main(sys.argv[1:])
