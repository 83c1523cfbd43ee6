"""Running a service process: signals, an orderly end, and an end with its parent."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import secrets
import signal
import socket
import sys
from typing import TYPE_CHECKING

from kernelflume.core.errors import ConfigurationError, KernelFlumeError
from kernelflume.runtime.logging import configure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kernelflume.runtime.settings import ServiceSettings

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1


def new_incarnation() -> str:
    """Return an id that differs at every start of a process."""
    return secrets.token_hex(4)


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port that nothing listens on at the moment of the call."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def exit_with_parent(parent_pid: int | None = None) -> None:
    """Make the kernel end this process with SIGTERM as soon as its parent thread ends, however it ends.

    Args:
        parent_pid: the parent as the child was told; if it is already gone the process exits at once.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if parent_pid is not None and os.getppid() != parent_pid:
        raise SystemExit(0)


def run(name: str, settings: ServiceSettings, main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run a service until it is told to stop; never returns normally on a failed start.

    Args:
        name: the service's name in its log lines.
        settings: the parsed settings.
        main: builds the service, serves until the event is set by SIGTERM or SIGINT, and cleans up.

    A ``KernelFlumeError`` from ``main`` ends the process with code 1 and one clear line on standard error.
    """
    configure(name, settings.log_level)
    if settings.exit_with_parent:
        exit_with_parent()

    async def supervise() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await main(stop)

    try:
        asyncio.run(supervise())
    except ConfigurationError as error:
        logger.error("refused to start: %s", error)  # noqa: TRY400 - the message is the whole fact
        sys.exit(2)
    except KernelFlumeError as error:
        logger.error("stopped: %s", error)  # noqa: TRY400
        sys.exit(1)
