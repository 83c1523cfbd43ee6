"""The gRPC control service of an attention node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psutil

from kernelflume.anode.control import (
    Connected,
    ConnectOrder,
    Disconnected,
    DisconnectOrder,
    PageListing,
    PagesOrder,
    StatisticsOrder,
    WorkerStatistics,
)
from kernelflume.anode.pages_parts import parts_of
from kernelflume.core.errors import HandshakeError, InvalidRequestError, NotFoundError
from kernelflume.core.names import split_name
from kernelflume.rpc.codec import (
    device_lanes_of,
    device_lanes_to_proto,
    handshake_from_proto,
    handshake_to_proto,
    region_from_proto,
    region_to_proto,
)
from kernelflume.rpc.v1 import anode_pb2, anode_pb2_grpc
from kernelflume.transport.lanes import LaneLayout

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import grpc

    from kernelflume.anode.control import Ready
    from kernelflume.anode.process import WorkerProcess
    from kernelflume.core.handshake import Handshake

MAX_LANES = 16
MAX_ROWS = 8192
_MAX_NAME_LENGTH = 256
_CONNECT_TIMEOUT_S = 60.0
"""Lanes of some GiB are faulted in first."""
_CALL_TIMEOUT_S = 10.0


class AttentionNodeServicer(anode_pb2_grpc.AttentionNodeServicer):
    """Checks what weight nodes ask for, and passes it on to the worker."""

    def __init__(
        self, worker: WorkerProcess, ready: Ready, handshake: Handshake, *, page_tokens: int
    ) -> None:
        self._worker = worker
        self._ready = ready
        self._handshake = handshake
        self._page_tokens = page_tokens

    async def Connect(
        self, request: anode_pb2.ConnectRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> anode_pb2.ConnectResponse:
        """Check the handshake and link the weight node."""
        del context
        if request.attention_node != self._handshake.node_name:
            raise HandshakeError(
                f"this is attention node {self._handshake.node_name}, not {request.attention_node!r}"
            )
        theirs = handshake_from_proto(request.handshake)
        self._handshake.check(theirs)
        layout = LaneLayout(theirs.geometry, _checked_max_rows(request.limits))
        order = connect_order(request, layout, self._ready.memory)
        link = await self._worker.call(order, Connected, timeout_s=_CONNECT_TIMEOUT_S)
        return anode_pb2.ConnectResponse(
            handshake=handshake_to_proto(self._handshake),
            transport_metadata=link.metadata,
            query_regions=[region_to_proto(region) for region in link.query_regions],
            append_regions=[region_to_proto(region) for region in link.append_regions],
            page_tokens=self._page_tokens,
            num_pages=self._ready.num_pages,
            num_free_pages=link.num_free_pages,
            doorbell_address=link.doorbell_address,
            device_lanes=device_lanes_to_proto(link.device_lanes),
        )

    async def Disconnect(
        self, request: anode_pb2.DisconnectRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> anode_pb2.DisconnectResponse:
        """Drop a weight node's link."""
        del context
        statistics = await self.statistics()
        if request.weight_node not in {link.weight_node for link in statistics.links}:
            raise NotFoundError(
                f"weight node {request.weight_node!r} is not linked to {self._handshake.node_name}"
            )
        order = DisconnectOrder((request.weight_node,), "it disconnected")
        freed = await self._worker.call(order, Disconnected, timeout_s=_CALL_TIMEOUT_S)
        return anode_pb2.DisconnectResponse(num_sequences_freed=freed.num_sequences_freed)

    async def GetStatistics(
        self, request: anode_pb2.GetAttentionStatisticsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> anode_pb2.AttentionStatistics:
        """Report exact figures."""
        del request, context
        statistics = await self.statistics()
        node_id, incarnation = split_name(self._handshake.node_name)
        return anode_pb2.AttentionStatistics(
            node_id=node_id,
            incarnation=incarnation,
            page_tokens=self._page_tokens,
            num_pages=statistics.num_pages,
            num_free_pages=statistics.num_free_pages,
            num_tokens=statistics.num_tokens,
            kv_bytes=statistics.pool_bytes,
            buffer_bytes=statistics.buffer_bytes,
            resident_bytes=psutil.Process(self._worker.pid).memory_info().rss,
            queries_served=statistics.queries_served,
            tokens_appended=statistics.tokens_appended,
            scan_bytes_per_second=statistics.scan_bytes_per_s,
            num_cached_pages=statistics.num_cached_pages,
            num_cached_tokens=statistics.num_cached_tokens,
            tokens_found=statistics.tokens_found,
            tokens_shared=statistics.tokens_shared,
            pages_evicted=statistics.pages_evicted,
            pages_expired=statistics.pages_expired,
            num_pinned_tokens=statistics.num_pinned_tokens,
            max_pinned_tokens=statistics.max_pinned_tokens,
            links=[
                anode_pb2.AttentionStatisticsLink(
                    weight_node=link.weight_node, num_sequences=link.num_sequences, num_tokens=link.num_tokens
                )
                for link in statistics.links
            ],
        )

    async def ListPages(
        self, request: anode_pb2.ListPagesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[anode_pb2.PagesPart]:
        """Tell every page, as of one moment."""
        del request, context
        listing = await self._worker.call(PagesOrder(), PageListing, timeout_s=_CALL_TIMEOUT_S)
        for part in parts_of(listing, page_tokens=self._page_tokens):
            yield part

    async def statistics(self) -> WorkerStatistics:
        """Ask the worker for its figures."""
        return await self._worker.call(StatisticsOrder(), WorkerStatistics, timeout_s=_CALL_TIMEOUT_S)


def connect_order(request: anode_pb2.ConnectRequest, layout: LaneLayout, memory: str) -> ConnectOrder:
    """Turn a request into an order.

    Raises:
        InvalidRequestError: a field is out of range, or does not fit the layout that both sides compute.
    """
    name, limits = request.handshake.node_name, request.limits
    node_id, incarnation = split_name(name)
    if not node_id or not incarnation or len(name) > _MAX_NAME_LENGTH:
        raise InvalidRequestError(
            f"node name {name!r} is not node_id#incarnation", parameter="handshake.node_name"
        )
    if not 1 <= limits.num_lanes <= MAX_LANES:
        raise InvalidRequestError(
            f"num_lanes must be between 1 and {MAX_LANES}, not {limits.num_lanes}",
            parameter="limits.num_lanes",
        )
    sizes = [region.num_bytes for region in request.partial_regions]
    if sizes != [layout.partial_region_bytes] * limits.num_lanes:
        raise InvalidRequestError(
            f"partial regions have {sizes} bytes; {limits.num_lanes} lanes of {layout.max_rows} rows need "
            f"{layout.partial_region_bytes} each",
            parameter="partial_regions",
        )
    if any(region.kind != memory for region in request.partial_regions):
        raise InvalidRequestError(
            f"partial regions must be {memory} for this node", parameter="partial_regions"
        )
    return ConnectOrder(
        weight_node=name,
        metadata=request.transport_metadata,
        num_lanes=limits.num_lanes,
        max_rows=layout.max_rows,
        partial_regions=tuple(region_from_proto(region) for region in request.partial_regions),
        doorbell_address=request.doorbell_address,
        device_lanes=device_lanes_of(request),
    )


def _checked_max_rows(limits: anode_pb2.LaneLimits) -> int:
    if not 1 <= limits.max_rows <= MAX_ROWS:
        raise InvalidRequestError(
            f"max_rows must be between 1 and {MAX_ROWS}, not {limits.max_rows}", parameter="limits.max_rows"
        )
    return limits.max_rows
