"""This side of the lanes whose rows the CPUs post: registered staging, prepared writes, what has arrived."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kernelflume.core.errors import HandshakeError, PeerLostError
from kernelflume.core.regions import DeviceLanes, LanePath
from kernelflume.cuda.exchange import NODE_ROUTE
from kernelflume.transport.base import Write
from kernelflume.transport.lanes import NUM_APPEND_SLOTS
from kernelflume.transport.memory import allocate_on, register
from kernelflume.transport.wire import Kind, LaneData

if TYPE_CHECKING:
    import torch

    from kernelflume.core.regions import MemoryRegion
    from kernelflume.transport.base import Transport, WritePlan
    from kernelflume.transport.lanes import LaneLayout

_WARMING_STEP = 0
"""Comes before any step."""
_NOTHING = (_WARMING_STEP, 0)


@dataclass(slots=True)
class _Lane:
    """One lane's memory, and its prepared writes once the link is connected."""

    queries: torch.Tensor
    keys_values: torch.Tensor
    partials: torch.Tensor
    regions: tuple[MemoryRegion, MemoryRegion, MemoryRegion]
    """Of the three."""
    query_plan: WritePlan | None = None
    """By bucket."""
    append_plan: WritePlan | None = None
    """By slot and bucket."""
    asked: tuple[int, int] = _NOTHING
    """Step and layer of the queries posted last."""
    answered: tuple[int, int] = _NOTHING
    """Step and layer of the newest partial."""


class HostEnd:
    """See ``LaneEnd``. A staging is free again when its write is done, before the next step at the latest."""

    def __init__(
        self,
        layout: LaneLayout,
        *,
        num_lanes: int,
        query_first: str,
        transport: Transport,
        device: torch.device,
    ) -> None:
        """Allocate and register."""
        self._layout = layout
        self._query_first = query_first
        self._in_layer = query_first != "local"
        self._transport = transport
        self._lanes = [self._allocate(device) for _ in range(num_lanes)]
        self._peer = ""
        self._is_open = False
        self._posted: list[tuple[WritePlan, int]] = []
        """Writes that may not be done yet."""

    @property
    def lanes(self) -> DeviceLanes:
        """This side's memory."""
        regions = tuple((lane.regions[2],) for lane in self._lanes)
        return DeviceLanes(self._layout.max_rows, self._query_first, regions, LanePath.HOST)

    @property
    def is_open(self) -> bool:
        """True once the writes are prepared and a write went each way."""
        return self._is_open

    @property
    def is_quiet(self) -> bool:
        """True when every query was answered."""
        return all(lane.asked == lane.answered for lane in self._lanes)

    def connect(self, peer: str, answer: DeviceLanes) -> None:
        """Check the attention node's lanes and prepare every write."""
        layout = self._layout
        sizes = [[region.num_bytes for region in regions] for regions in answer.lanes]
        wanted = [layout.query_region_bytes, layout.append_region_bytes]
        if answer.path != LanePath.HOST or sizes != [wanted] * len(self._lanes):
            raise HandshakeError(
                f"lanes of the {answer.path} path have regions of {sizes} bytes; {wanted} each are needed "
                f"on the {LanePath.HOST} path"
            )
        self._peer = peer
        for lane, (queries, appends) in zip(self._lanes, answer.lanes, strict=True):
            lane.query_plan = self._transport.plan_writes(
                peer,
                [Write(lane.regions[0], 0, queries, 0, layout.query_bytes(rows)) for rows in layout.buckets],
            )
            lane.append_plan = self._transport.plan_writes(
                peer,
                [
                    Write(lane.regions[1], 0, appends, slot * layout.append_slot_bytes, self._kv_bytes(rows))
                    for slot in range(NUM_APPEND_SLOTS)
                    for rows in layout.buckets
                ],
            )

    def open(self, peer: str, answer: DeviceLanes) -> None:
        """Begin to use the lanes, by a write into each region of them.

        The first write maps the node's memory. While a step waits that could take until the step ends.
        """
        del peer, answer  # ``connect`` took what is needed of them
        for lane in range(len(self._lanes)):
            self.post_query(lane, step=_WARMING_STEP, layer=0, num_rows=1)
            self.post_keys_values(lane, step=_WARMING_STEP, layer=0, num_rows=1)
        self._is_open = True

    def route(self, lane: int, *, num_query_rows: int, num_kv_rows: int) -> np.ndarray:
        """Return [1] of NODE_ROUTE: where rows are gathered, and where partials arrive."""
        layout, memory = self._layout, self._lanes[lane]
        partials = memory.partials.data_ptr()
        record = np.zeros(1, NODE_ROUTE)
        record["partial_out"] = partials + layout.graph_out_offset
        record["partial_lse"] = partials
        record["staged_queries"] = memory.queries.data_ptr()
        record["staged_keys_values"] = memory.keys_values.data_ptr()
        record["num_query_rows"] = num_query_rows
        record["num_kv_rows"] = num_kv_rows
        if num_kv_rows:
            record["staged_kv_rows"] = layout.buckets[layout.bucket_index(num_kv_rows)]
        return record

    def advance(self, lane: int, *, queried: bool, stored: bool) -> None:
        """Nothing: a step's number says all."""

    def post_query(self, lane: int, *, step: int, layer: int, num_rows: int) -> None:
        """Send the gathered queries of a layer.

        Raises:
            PeerLostError: the node is gone.
        """
        memory = self._lanes[lane]
        memory.asked = (step, layer)
        notice = LaneData(Kind.LANE_QUERY, lane, layer, step)
        self._post(memory.query_plan, self._layout.bucket_index(num_rows), notice)

    def post_keys_values(self, lane: int, *, step: int, layer: int, num_rows: int) -> None:
        """Send the gathered keys and values of a layer, or of all where they travel once a step.

        Raises:
            PeerLostError: the node is gone.
        """
        layout = self._layout
        index = step % NUM_APPEND_SLOTS * len(layout.buckets) + layout.bucket_index(num_rows)
        self._post(self._lanes[lane].append_plan, index, LaneData(Kind.LANE_APPEND, lane, layer, step))

    def has_partial(self, lane: int, *, step: int, layer: int) -> bool:
        """True when a layer's partial is here."""
        return self._lanes[lane].answered == (step, layer)

    def receive(self, notice: LaneData) -> None:
        """Take in that a partial is here."""
        if notice.kind is Kind.LANE_PARTIAL and notice.lane < len(self._lanes):
            self._lanes[notice.lane].answered = (notice.step, notice.layer)

    def is_settled(self) -> bool:
        """True when the source of everything posted may be written again.

        Raises:
            PeerLostError: the node is gone.
        """
        self._posted = [
            (plan, index) for plan, index in self._posted if not self._transport.is_done(plan, index)
        ]
        return not self._posted

    def close_views(self) -> None:
        """Post nothing any more."""
        self._is_open = False
        self._posted = []

    def release(self) -> None:
        """Deregister; the peer must have been disconnected."""
        for lane in self._lanes:
            for region in lane.regions:
                self._transport.deregister(region)

    def _allocate(self, device: torch.device) -> _Lane:
        layout, transport = self._layout, self._transport
        queries = allocate_on(device, layout.query_region_bytes)
        keys_values = allocate_on(device, self._kv_bytes(layout.max_rows))
        partials = allocate_on(device, layout.graph_partial_bytes(layout.max_rows))
        regions = (
            register(transport, queries),
            register(transport, keys_values),
            register(transport, partials),
        )
        return _Lane(queries, keys_values, partials, regions)

    def _kv_bytes(self, rows: int) -> int:
        """Bytes of ``rows`` keys and values as they travel at a time."""
        layout = self._layout
        return rows * layout.geometry.kv_row_bytes if self._in_layer else layout.append_bytes(rows)

    def _post(self, plan: WritePlan | None, index: int, notice: LaneData) -> None:
        if plan is None:
            raise PeerLostError(self._peer, "its lanes are not connected")
        self._transport.post(plan, index, notice.encode())
        if (plan, index) not in self._posted:
            self._posted.append((plan, index))
