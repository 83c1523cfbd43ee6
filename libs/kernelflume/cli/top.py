"""`kernelflume top`: a live view of the attention pool on a terminal, a snapshot an interval elsewhere."""

from __future__ import annotations

import asyncio
import signal
from contextlib import aclosing, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live

from kernelflume.cli.admin import CALL_TIMEOUT_S, scaler_admin
from kernelflume.cli.exits import errors_as_exit
from kernelflume.cli.options import DEFAULT_SCALER, ScalerAddress
from kernelflume.cli.output import output_console
from kernelflume.cli.security import with_channels
from kernelflume.cli.top_view import render
from kernelflume.cli.watch import Sight, watch_topology
from kernelflume.rpc.channel import Channels  # noqa: TC001 - with_channels reads the annotations
from kernelflume.rpc.v1 import scaler_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rich.console import Console


@with_channels
def top(
    *,
    channels: Channels,
    scaler: ScalerAddress = DEFAULT_SCALER,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot and end.")] = False,
) -> None:
    """Watch nodes, their occupancy against the threshold, the running operation, and recent decisions.

    Without a terminal one plain snapshot is printed each interval. Ctrl-C ends it.
    """
    console = output_console()
    with errors_as_exit():
        if once:
            with scaler_admin(scaler, channels) as admin:
                topology = admin.GetTopology(scaler_pb2.GetTopologyRequest(), timeout=CALL_TIMEOUT_S)
            _print(console, Sight(topology), scaler)
        else:
            asyncio.run(_watch(console, scaler, channels, interval))


async def _watch(console: Console, address: str, channels: Channels, interval_s: float) -> None:
    """Show the topology until SIGINT, SIGTERM or SIGHUP."""
    async with aclosing(watch_topology(address, channels, interval_s=interval_s)) as sights:
        showing = asyncio.ensure_future(
            _live(console, sights, address) if console.is_terminal else _plain(console, sights, address)
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, showing.cancel)
        with suppress(asyncio.CancelledError):
            await showing


async def _live(console: Console, sights: AsyncIterator[Sight], address: str) -> None:
    # On a screen of its own, so that what stood in the terminal comes back; drawn only when there is news.
    with Live(console=console, screen=True, auto_refresh=False) as live:
        async for sight in sights:
            live.update(render(sight, title=_title(address), height=console.height), refresh=True)


async def _plain(console: Console, sights: AsyncIterator[Sight], address: str) -> None:
    fault = ""
    async for sight in sights:
        if not sight.fault:
            _print(console, sight, address)
            console.print()
        elif sight.fault != fault:
            # Once: a log is no place for the same words every second.
            _print(console, Sight(None, sight.fault), address)
        fault = sight.fault


def _print(console: Console, sight: Sight, address: str) -> None:
    console.print(render(sight, title=_title(address)))


def _title(address: str) -> str:
    return f"kernelflume top, scaler {address}, {datetime.now().astimezone():%H:%M:%S}"
