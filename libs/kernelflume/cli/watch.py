"""A topology that is read again and again, over the times when the scaler is away."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from kernelflume.cli.admin import explained
from kernelflume.core.errors import DeadlineError, UnavailableError
from kernelflume.rpc.channel import PLAINTEXT
from kernelflume.rpc.status import error_of
from kernelflume.rpc.v1 import scaler_pb2, scaler_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from kernelflume.rpc.channel import Channels

_SILENCE_S = 5.0
"""A stream that is silent for this much longer than its interval is given up: its scaler hangs."""
_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Sight:
    """What is known at one time."""

    topology: scaler_pb2.Topology | None
    """The newest one; None before the first."""
    fault: str = ""
    """Why there is no newer one; '' when it is of now."""


async def watch_topology(
    address: str,
    channels: Channels = PLAINTEXT,
    *,
    interval_s: float,
    silence_s: float = _SILENCE_S,
    retry_s: float = _RETRY_S,
) -> AsyncGenerator[Sight]:
    """Yield what the scaler at ``address`` shows, at every interval, without end.

    While it is away, each attempt to reach it again yields the last topology with the fault.

    Args:
        address: of the scaler.
        channels: how it is called.
        interval_s: between two topologies, from 0.1.
        silence_s: how late a topology may be.
        retry_s: wait before the scaler is called again.

    Raises:
        KernelFlumeError: the scaler refuses, and would again.
    """
    topology: scaler_pb2.Topology | None = None
    request = scaler_pb2.WatchTopologyRequest(interval_seconds=interval_s)
    async with channels.open(address) as channel:
        stub = scaler_pb2_grpc.ScalerAdminStub(channel)
        while True:
            call = stub.WatchTopology(request)
            try:
                while True:
                    async with asyncio.timeout(interval_s + silence_s):
                        answer = await call.read()
                    if answer is grpc.aio.EOF:
                        fault = f"the scaler at {address} ended the stream"
                        break
                    topology = answer
                    yield Sight(topology)
            except TimeoutError:
                fault = f"the scaler at {address} is silent"
            except grpc.RpcError as failure:
                error = explained(error_of(failure), address, channels, lambda: _is_connected(channel))
                if not isinstance(error, UnavailableError | DeadlineError):
                    raise error from failure
                fault = str(error)
            finally:
                call.cancel()
            yield Sight(topology, fault)
            await asyncio.sleep(retry_s)


def _is_connected(channel: grpc.aio.Channel) -> bool:
    return channel.get_state() is grpc.ChannelConnectivity.READY
