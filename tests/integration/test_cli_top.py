"""`kernelflume top` over real gRPC: its stream, the times when the scaler is away, its end."""

from __future__ import annotations

import asyncio
import operator
import os
import pty
import signal
import subprocess
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from tests.scaler_rig import WAIT_S
from tests.topology import topology

from kernelflume.cli.watch import Sight, watch_topology
from kernelflume.core.errors import KernelFlumeError
from kernelflume.rpc.v1 import scaler_pb2, scaler_pb2_grpc
from kernelflume.runtime.service import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

COMMAND = (sys.executable, "-m", "kernelflume.cli.main", "top", "--interval", "0.1", "--scaler")


class WatchedScaler(scaler_pb2_grpc.ScalerAdminServicer):
    """Streams one topology after the other, each with the next epoch."""

    def __init__(self) -> None:
        self.epoch = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.ends = False
        self.lacks = ""
        self.intervals: list[float] = []

    async def WatchTopology(  # noqa: N802 - gRPC's name
        self, request: scaler_pb2.WatchTopologyRequest, context: Any
    ) -> AsyncIterator[scaler_pb2.Topology]:
        self.intervals.append(request.interval_seconds)
        while not self.ends:
            await self.answers.wait()
            if self.lacks:
                await context.abort(grpc.StatusCode.UNAVAILABLE, self.lacks)
            self.epoch += 1
            message = topology()
            message.epoch = self.epoch
            yield message
            await asyncio.sleep(0.01)


async def serving(servicer: WatchedScaler, port: int) -> grpc.aio.Server:
    server = grpc.aio.server()
    scaler_pb2_grpc.add_ScalerAdminServicer_to_server(servicer, server)
    assert server.add_insecure_port(f"127.0.0.1:{port}") == port
    await server.start()
    return server


async def first(sights: AsyncIterator[Sight], fits: Callable[[str], bool]) -> Sight:
    """Wait for a sight with such a fault: a scaler on a busy machine may be silent before it."""
    async with asyncio.timeout(WAIT_S):
        async for sight in sights:
            if fits(sight.fault):
                return sight
    raise AssertionError("the watch ended")


async def test_a_watch_goes_on_when_the_scaler_comes_back() -> None:
    port, scaler = free_port(), WatchedScaler()
    watch = watch_topology(f"127.0.0.1:{port}", interval_s=0.1, silence_s=0.3, retry_s=0.05)
    async with aclosing(watch) as sights:
        absent = await first(
            sights, lambda fault: fault.startswith(f"no scaler answers at 127.0.0.1:{port}; ")
        )
        assert absent.topology is None

        server = await serving(scaler, port)
        seen = (await first(sights, operator.not_)).topology
        assert seen is not None
        assert set(scaler.intervals) == {0.1}

        await server.stop(None)
        away = await first(sights, bool)
        assert away.topology is not None
        assert away.topology.epoch >= seen.epoch

        server = await serving(scaler, port)
        back = (await first(sights, operator.not_)).topology
        assert back is not None
        assert back.epoch > away.topology.epoch

        scaler.answers.clear()
        await first(sights, lambda fault: fault.endswith(" is silent"))
        scaler.answers.set()
        await first(sights, operator.not_)

        scaler.lacks = "the store cannot be reached"
        await first(sights, lambda fault: fault == "the store cannot be reached")
        scaler.lacks = ""
        await first(sights, operator.not_)

        scaler.ends = True
        await first(sights, lambda fault: fault.endswith(" ended the stream"))
        await server.stop(None)


async def test_a_refusal_ends_the_watch() -> None:
    port = free_port()
    server = grpc.aio.server()
    scaler_pb2_grpc.add_ScalerAdminServicer_to_server(scaler_pb2_grpc.ScalerAdminServicer(), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    with pytest.raises(KernelFlumeError, match="not implemented"):
        await anext(watch_topology(f"127.0.0.1:{port}", interval_s=1.0))
    await server.stop(None)


async def test_without_a_terminal_it_prints_a_snapshot_an_interval_and_ctrl_c_ends_it() -> None:
    port, scaler = free_port(), WatchedScaler()
    server = await serving(scaler, port)
    process = await asyncio.create_subprocess_exec(
        *COMMAND, f"127.0.0.1:{port}", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    snapshots = 0
    try:
        async with asyncio.timeout(WAIT_S):
            while snapshots < 2:
                line = (await process.stdout.readline()).decode()
                assert line
                snapshots += line.startswith("epoch ")
            await server.stop(None)
            while not line.startswith("no scaler answers at "):
                line = (await process.stdout.readline()).decode()
                assert line
            process.send_signal(signal.SIGINT)
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert (process.returncode, err) == (0, b"")
    assert b"\x1b" not in out


async def test_on_a_terminal_it_has_a_screen_of_its_own_and_gives_it_back() -> None:
    port, scaler = free_port(), WatchedScaler()
    server = await serving(scaler, port)
    leader, follower = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        f"127.0.0.1:{port}",
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
    )
    os.close(follower)
    shown = b""
    try:
        async with asyncio.timeout(WAIT_S):
            while shown.count(b"kernelflume top") < 2:
                shown += await asyncio.to_thread(os.read, leader, 65536)
            process.send_signal(signal.SIGINT)
            while b"\x1b[?1049l" not in shown:
                shown += await asyncio.to_thread(os.read, leader, 65536)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        os.close(leader)
        await server.stop(None)
    assert b"\x1b[?1049h" in shown
    assert "█".encode() in shown
    assert b"Traceback" not in shown
