"""Keys and values of one layer written into an append slot while the next layer is computed.

The slot is laid out as one APPEND finds it (``transport.lanes``), and so the attention node sees no
difference: the layers come by silent writes, and once all are there the APPEND follows as a notice alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelflume.transport.base import Write
from kernelflume.transport.lanes import NUM_APPEND_SLOTS

if TYPE_CHECKING:
    from kernelflume.core.regions import MemoryRegion
    from kernelflume.transport.base import Transport, WritePlan
    from kernelflume.transport.lanes import LaneLayout


class KvStream:
    """The prepared writes of one link, for each slot, bucket and layer; used by the step loop alone."""

    def __init__(self, layout: LaneLayout, min_rows: int) -> None:
        """Prepare nothing yet.

        Args:
            layout: of the link's lane.
            min_rows: fewest rows that are worth a write for each layer; 0 streams none.
        """
        self._layout = layout
        self._first = layout.bucket_index(min_rows) if min_rows else len(layout.buckets)
        self._transport: Transport | None = None
        self._plan: WritePlan | None = None
        self._under_way: list[list[int]] = [[] for _ in range(NUM_APPEND_SLOTS)]

    def connect(self, transport: Transport, peer: str, local: MemoryRegion, remote: MemoryRegion) -> None:
        """Prepare every write between the two append regions.

        Raises:
            PeerLostError: the node cannot be reached.
        """
        layout = self._layout
        writes = [
            Write(local, offset, remote, offset, num_bytes)
            for slot in range(NUM_APPEND_SLOTS)
            for rows in layout.buckets[self._first :]
            for num_bytes in [layout.append_layer_bytes(rows)]
            for layer in range(layout.geometry.num_layers)
            for offset in [slot * layout.append_slot_bytes + layer * num_bytes]
        ]
        if writes:
            self._transport = transport
            self._plan = transport.plan_writes(peer, writes, silent=True)

    def takes(self, num_rows: int) -> bool:
        """True when the keys and values of so many rows go layer by layer."""
        return self._plan is not None and self._layout.bucket_index(num_rows) >= self._first

    def post(self, slot: int, layer: int, num_rows: int) -> None:
        """Send one layer of a slot's staging.

        Raises:
            PeerLostError: the node is gone.
        """
        assert self._transport is not None and self._plan is not None  # noqa: S101, PT018 - ``takes`` said so
        layout = self._layout
        bucket = slot * (len(layout.buckets) - self._first) + layout.bucket_index(num_rows) - self._first
        index = bucket * layout.geometry.num_layers + layer
        self._transport.post(self._plan, index)
        if not self._transport.is_done(self._plan, index):
            self._under_way[slot].append(index)

    def is_done(self, slot: int) -> bool:
        """True when all that was posted of a slot is at the node, so that it may be told, or the slot reused.

        Raises:
            PeerLostError: the node is gone.
        """
        under_way = self._under_way[slot]
        if not under_way:
            return True
        assert self._transport is not None and self._plan is not None  # noqa: S101, PT018 - it was posted
        while under_way and self._transport.is_done(self._plan, under_way[-1]):
            under_way.pop()
        return not under_way

    @property
    def is_quiet(self) -> bool:
        """True when nothing was under way when last asked."""
        return not any(self._under_way)
