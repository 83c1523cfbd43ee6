"""When a scale event began and when its routes were in force, as a client of the scaler sees it."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from typing import TYPE_CHECKING, Any

from kernelflume.rpc.v1 import scaler_pb2

if TYPE_CHECKING:
    from typing import Self

    from kernelflume.rpc.v1 import scaler_pb2_grpc

_INTERVAL_S = 0.1
_TIMEOUT_S = 120.0
_IN_FORCE = ("draining", "retiring", "releasing", "done")
"""Phases after the publish."""


async def change_target(
    admin: scaler_pb2_grpc.ScalerAdminStub, num_nodes: int, *, waits: bool = True
) -> None:
    """Ask for so many attention nodes.

    Raises:
        SystemExit: the operation failed.
        TimeoutError: it, or one before it, did not end in time.
    """
    async with asyncio.timeout(_TIMEOUT_S):
        await _settled(admin)
        name = f"bench-{uuid.uuid4().hex[:8]}"
        await admin.SetTarget(scaler_pb2.SetTargetRequest(operation_id=name, attention_nodes=num_nodes))
        operation = await _settled(admin) if waits else None
    if operation is not None and operation.result != "succeeded":
        raise SystemExit(f"scaling to {num_nodes}: {operation.result} {operation.reason}")


async def _settled(admin: scaler_pb2_grpc.ScalerAdminStub) -> scaler_pb2.Operation | None:
    """Wait until no operation runs; return the newest, if there is one."""
    while True:
        operation = (await admin.GetTopology(scaler_pb2.GetTopologyRequest())).operation
        if operation.result or not operation.operation_id:
            return operation if operation.operation_id else None
        await asyncio.sleep(_INTERVAL_S)


async def set_policy(admin: scaler_pb2_grpc.ScalerAdminStub, text: str) -> None:
    """Set a policy and have it choose the number of nodes."""
    await admin.SetPolicy(scaler_pb2.SetPolicyRequest(yaml=text), timeout=_TIMEOUT_S)
    await admin.ResumeAutomaticScaling(scaler_pb2.ResumeAutomaticScalingRequest(), timeout=_TIMEOUT_S)


class EventWatch:
    """Follows the scaler's topology while a run lasts; use as a context manager."""

    def __init__(self, admin: scaler_pb2_grpc.ScalerAdminStub) -> None:
        self._admin = admin
        self._operation: scaler_pb2.Operation | None = None
        self._earlier = ""
        self._watching: asyncio.Task[None] | None = None
        self.began: float | None = None
        """``time.perf_counter`` when it was asked for, or first seen."""
        self.ended: float | None = None
        """When the weight nodes were first seen to have adopted it."""

    def requested(self, at: float) -> None:
        """Note that the event is asked for now."""
        self.began = at

    def installed(self, at: float) -> None:
        """Note that it is in force, where there is none."""
        self.ended = at

    def to_dict(self) -> dict[str, Any]:
        """Return its phases, and how long it took until routable."""
        if self._operation is None:
            return {}
        took = self.ended - self.began if self.ended and self.began else None
        return {
            "nodes": f"{self._operation.initial_attention_nodes} -> {self._operation.target_attention_nodes}",
            "origin": self._operation.origin,
            "result": self._operation.result,
            "routable_after_s": None if took is None else round(took, 2),
            "phases_s": {phase.phase: round(phase.seconds, 4) for phase in self._operation.history},
        }

    async def __aenter__(self) -> Self:
        topology = await self._admin.GetTopology(scaler_pb2.GetTopologyRequest(), timeout=_TIMEOUT_S)
        self._earlier = topology.operation.operation_id
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching

    async def _watch(self) -> None:
        request = scaler_pb2.WatchTopologyRequest(interval_seconds=_INTERVAL_S)
        async for topology in self._admin.WatchTopology(request):
            operation = topology.operation
            if not operation.operation_id or operation.operation_id == self._earlier:
                continue
            now = time.perf_counter()
            self._operation = operation
            self.began = self.began or now
            is_adopted = all(node.adopted_epoch >= topology.epoch for node in topology.weight_nodes)
            if self.ended is None and operation.phase in _IN_FORCE and is_adopted:
                self.ended = now
