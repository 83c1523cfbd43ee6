"""The gRPC face of the scaler: requests in, the controller's answers out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernelflume.core.errors import UnavailableError
from kernelflume.rpc.v1 import scaler_pb2_grpc
from kernelflume.scaler.topology import operation_to_proto, read_topology

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kernelflume.rpc.v1 import scaler_pb2
    from kernelflume.runtime.clock import Clock
    from kernelflume.scaler.book import OperationBook
    from kernelflume.scaler.controller import Controller
    from kernelflume.scaler.leader import Leadership
    from kernelflume.store.base import RoutingStore


class ScalerAdminServicer(scaler_pb2_grpc.ScalerAdminServicer):
    """``ScalerAdmin``. A standby shows the topology and refuses everything else as UNAVAILABLE."""

    def __init__(
        self,
        controller: Controller,
        book: OperationBook,
        store: RoutingStore,
        leadership: Leadership,
        clock: Clock,
        *,
        token_bytes: int,
    ) -> None:
        self._controller = controller
        self._book = book
        self._store = store
        self._leadership = leadership
        self._clock = clock
        self._token_bytes = token_bytes

    async def GetTopology(
        self, _request: scaler_pb2.GetTopologyRequest, _context: Any
    ) -> scaler_pb2.Topology:
        """Return what the store knows, and the newest operation."""
        return await read_topology(
            self._store,
            target=self._controller.target,
            operation=self._book.newest,
            token_bytes=self._token_bytes,
            now_s=self._clock.now(),
        )

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
        return operation_to_proto(self._book.get(request.operation_id), now_s=self._clock.now())

    async def WatchOperation(
        self, request: scaler_pb2.GetOperationRequest, _context: Any
    ) -> AsyncIterator[scaler_pb2.Operation]:
        """Stream an operation at each change until it is done."""
        self._check_leading()
        async for operation in self._book.watch(request.operation_id):
            yield operation_to_proto(operation, now_s=self._clock.now())

    async def CancelOperation(
        self, request: scaler_pb2.GetOperationRequest, _context: Any
    ) -> scaler_pb2.Operation:
        """Stop an operation; it is rolled back when the answer comes or soon after."""
        self._check_leading()
        operation = self._controller.cancel(request.operation_id)
        return operation_to_proto(operation, now_s=self._clock.now())

    def _check_leading(self) -> None:
        if self._leadership.token is None:
            raise UnavailableError("this scaler is a standby: another one leads")
