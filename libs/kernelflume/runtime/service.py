"""Running a service process: signals, an orderly end, and an end with its parent."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import socket
import sys
from typing import TYPE_CHECKING

from kernelflume.core.errors import ConfigurationError, KernelFlumeError
from kernelflume.runtime.logging import configure
from kernelflume.runtime.tether import tether_to_parent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kernelflume.runtime.settings import ServiceSettings

logger = logging.getLogger(__name__)

_FIRST_FREE_PORT = 20_000
_NUM_FREE_PORTS = 12_768
_PORT_TRIES = 100

EXIT_FAILED = 1
EXIT_REFUSED = 2
"""A setting is at fault: starting again changes nothing."""


def new_incarnation() -> str:
    """Return an id that differs at every start of a process."""
    return secrets.token_hex(4)


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port that nothing listens on at the moment of the call.

    It lies below the range from which Linux gives ports to outgoing connections: one from that range may be
    taken by a connection of any program before the service that was promised it listens.

    Raises:
        ConfigurationError: none of many ports could be listened on.
    """
    for _ in range(_PORT_TRIES):
        port = _FIRST_FREE_PORT + secrets.randbelow(_NUM_FREE_PORTS)
        with socket.socket() as probe:
            # As servers do: a port whose last connections are still closing can be listened on.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise ConfigurationError(f"no free port on {host} between {_FIRST_FREE_PORT} and 32767")


def run(
    name: str,
    settings: ServiceSettings,
    main: Callable[[asyncio.Event], Awaitable[None]],
    *,
    lifeline: int | None = None,
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    """Run a service until it is told to stop; never returns normally on a failed start.

    Args:
        name: the service's name in its log lines.
        settings: the parsed settings.
        main: builds the service, serves until the event is set by SIGTERM or SIGINT, and cleans up.
        lifeline: descriptor of a pipe whose other end is closed when the service must end; in place of
            ``settings.exit_with_parent``, for one whose parent is not its owner.
        new_loop: makes the event loop; None: asyncio's own.

    A second SIGINT ends the process at once. An error that leaves ``main`` ends it with one clear log line:
    code 2 for a ``ConfigurationError``, code 1 for any other (with its traceback, if it is not our own).
    """
    configure(name, settings.log_level)
    if settings.exit_with_parent and lifeline is None:
        tether_to_parent()

    async def supervise() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_signal(number: signal.Signals) -> None:
            logger.info("stopping on %s", number.name)
            stop.set()
            # SIGTERM stays handled: a tethered process gets one from its parent and one from the kernel.
            loop.remove_signal_handler(signal.SIGINT)
            signal.signal(signal.SIGINT, signal.SIG_DFL)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal, number)

        def on_lifeline(descriptor: int) -> None:
            logger.info("stopping, as the owner of this process is gone")
            stop.set()
            loop.remove_reader(descriptor)

        if lifeline is not None:
            loop.add_reader(lifeline, on_lifeline, lifeline)
        await main(stop)

    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(supervise())
    except ConfigurationError as error:
        logger.error("refused to start: %s", error)  # noqa: TRY400 - the message is the whole fact
        sys.exit(EXIT_REFUSED)
    except KernelFlumeError as error:
        logger.error("stopped: %s", error)  # noqa: TRY400
        sys.exit(EXIT_FAILED)
    except Exception:
        logger.exception("stopped by an unexpected error")
        sys.exit(EXIT_FAILED)
