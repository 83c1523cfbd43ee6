"""The gRPC face of the scaler: requests in, the controller's answers out."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from kernelflume.core.errors import InvalidRequestError, UnavailableError
from kernelflume.rpc.v1 import scaler_pb2, scaler_pb2_grpc
from kernelflume.scaler.topology import operation_to_proto, read_topology
from kernelflume.scaler.topology_feed import TopologyFeed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kernelflume.runtime.clock import Clock
    from kernelflume.scaler.book import OperationBook
    from kernelflume.scaler.controller import Controller
    from kernelflume.scaler.leader import Leadership
    from kernelflume.scaler.policy_source import PolicySource
    from kernelflume.scaler.scaling_policy import ScalingPolicy
    from kernelflume.store.base import RoutingStore


_WATCH_INTERVAL_S = 1.0
_MIN_WATCH_INTERVAL_S = 0.1


class ScalerAdminServicer(scaler_pb2_grpc.ScalerAdminServicer):
    """``ScalerAdmin``. A standby shows the topology and refuses everything else as UNAVAILABLE."""

    def __init__(
        self,
        *,
        controller: Controller,
        book: OperationBook,
        store: RoutingStore,
        leadership: Leadership,
        clock: Clock,
        source: PolicySource,
        put_in_force: Callable[[ScalingPolicy], None],
        token_bytes: int,
    ) -> None:
        self._controller = controller
        self._book = book
        self._store = store
        self._leadership = leadership
        self._clock = clock
        self._source = source
        self._put_in_force = put_in_force
        self._token_bytes = token_bytes
        self._feed = TopologyFeed(self._topology, clock, max_age_s=_MIN_WATCH_INTERVAL_S / 2)

    async def GetTopology(
        self, _request: scaler_pb2.GetTopologyRequest, _context: Any
    ) -> scaler_pb2.Topology:
        """Return what the store knows, and the newest operation."""
        return await self._topology()

    async def WatchTopology(
        self, request: scaler_pb2.WatchTopologyRequest, _context: Any
    ) -> AsyncIterator[scaler_pb2.Topology]:
        """Stream the topology until the caller has enough."""
        interval_s = request.interval_seconds or _WATCH_INTERVAL_S
        if not _MIN_WATCH_INTERVAL_S <= interval_s < math.inf:
            raise InvalidRequestError(
                f"interval_seconds must be 0, or from {_MIN_WATCH_INTERVAL_S:g}, not {interval_s:g}",
                parameter="interval_seconds",
            )
        while True:
            yield await self._feed.topology()
            await asyncio.sleep(interval_s)

    async def Drain(self, request: scaler_pb2.DrainRequest, _context: Any) -> scaler_pb2.Operation:
        """Begin the removal of named nodes, or return the operation that the request repeats."""
        self._check_leading()
        operation = await self._controller.drain(
            request.operation_id,
            tuple(request.node_ids),
            deadline_s=request.deadline_seconds,
            deadline_covers_drain=request.deadline_covers_drain,
        )
        return operation_to_proto(operation, now_s=self._clock.now())

    async def GetPolicy(self, _request: scaler_pb2.GetPolicyRequest, _context: Any) -> scaler_pb2.Policy:
        """Return the policy in force."""
        return self._policy()

    async def SetPolicy(self, request: scaler_pb2.SetPolicyRequest, _context: Any) -> scaler_pb2.Policy:
        """Put another policy in force."""
        self._check_leading()
        policy = await self._source.set(request.yaml, fencing_token=self._leadership.proof)
        self._put_in_force(policy)
        return self._policy()

    async def PauseAutomaticScaling(
        self, _request: scaler_pb2.PauseAutomaticScalingRequest, _context: Any
    ) -> scaler_pb2.Policy:
        """Leave the pool as it is."""
        self._check_leading()
        self._controller.pause()
        return self._policy()

    async def ResumeAutomaticScaling(
        self, _request: scaler_pb2.ResumeAutomaticScalingRequest, _context: Any
    ) -> scaler_pb2.Policy:
        """Let the policy choose again."""
        self._check_leading()
        self._controller.resume()
        return self._policy()

    async def SetTarget(self, request: scaler_pb2.SetTargetRequest, _context: Any) -> scaler_pb2.Operation:
        """Begin an operation, or return the one that the request repeats."""
        self._check_leading()
        operation = await self._controller.set_target(
            request.operation_id,
            request.attention_nodes,
            deadline_s=request.deadline_seconds,
            deadline_covers_drain=request.deadline_covers_drain,
        )
        return operation_to_proto(operation, now_s=self._clock.now())

    async def GetOperation(
        self, request: scaler_pb2.GetOperationRequest, _context: Any
    ) -> scaler_pb2.Operation:
        """Return an operation as it is now."""
        self._check_leading()
        operation = await self._controller.find(request.operation_id)
        return operation_to_proto(operation, now_s=self._clock.now())

    async def WatchOperation(
        self, request: scaler_pb2.GetOperationRequest, _context: Any
    ) -> AsyncIterator[scaler_pb2.Operation]:
        """Stream an operation at each change until it is done."""
        self._check_leading()
        await self._controller.find(request.operation_id)
        async for operation in self._book.watch(request.operation_id):
            yield operation_to_proto(operation, now_s=self._clock.now())

    async def CancelOperation(
        self, request: scaler_pb2.GetOperationRequest, _context: Any
    ) -> scaler_pb2.Operation:
        """Stop an operation; it is rolled back when the answer comes or soon after."""
        self._check_leading()
        await self._controller.find(request.operation_id)
        operation = self._controller.cancel(request.operation_id)
        return operation_to_proto(operation, now_s=self._clock.now())

    async def _topology(self) -> scaler_pb2.Topology:
        return await read_topology(
            self._store,
            target=self._controller.target,
            operation=self._book.newest,
            mode=self._mode,
            sizing=self._controller.sizing,
            decisions=self._controller.decisions.recent,
            token_bytes=self._token_bytes,
            now_s=self._clock.now(),
        )

    @property
    def _mode(self) -> str:
        return "automatic" if self._controller.is_automatic else "manual"

    def _policy(self) -> scaler_pb2.Policy:
        return scaler_pb2.Policy(
            yaml=self._controller.scaling.to_yaml(), origin=self._source.origin, mode=self._mode
        )

    def _check_leading(self) -> None:
        if self._leadership.token is None:
            raise UnavailableError("this scaler is a standby: another one leads")
