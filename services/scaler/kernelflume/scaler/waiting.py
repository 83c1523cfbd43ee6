"""Waiting for other processes: probes that say what is still missing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kernelflume.core.errors import DeadlineError, PeerLostError, UnavailableError
from kernelflume.rpc.channel import PLAINTEXT, Channels

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from kernelflume.runtime.clock import Deadline

POLL_INTERVAL_S = 0.02
_HEALTH_TIMEOUT_S = 2.0


async def wait_until(
    probe: Callable[[], Awaitable[str | None]],
    deadline: Deadline | None,
    *,
    interval_s: float = POLL_INTERVAL_S,
) -> None:
    """Call ``probe`` until it returns None; a text says what is still missing.

    An ``UnavailableError`` of the probe counts as missing too: the store or a peer may come back. A
    ``PeerLostError`` does not.

    Args:
        probe: looks once.
        deadline: None waits as long as it takes.
        interval_s: pause between two looks.

    Raises:
        DeadlineError: the time ran out; the message says what was missing at last.
    """
    while True:
        try:
            missing = await probe()
        except PeerLostError:
            raise
        except UnavailableError as error:
            missing = str(error)
        if missing is None:
            return
        if deadline is not None and deadline.expired:
            raise DeadlineError(f"after {deadline.seconds:g} s {missing}")
        await asyncio.sleep(interval_s)


async def is_serving(address: str, channels: Channels = PLAINTEXT) -> bool:
    """Return whether the gRPC server at ``address`` answers its health check with SERVING."""
    async with channels.open(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=_HEALTH_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def first_of(*coroutines: Coroutine[Any, Any, Any]) -> None:
    """Run all until the first one ends, then cancel the others and wait for them; raises what it raised."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
