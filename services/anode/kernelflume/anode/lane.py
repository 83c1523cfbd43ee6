"""One lane on the attention node's side: its registered buffers, and how far its microbatch is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernelflume.tensor.partials import Partial
from kernelflume.transport.base import Write
from kernelflume.transport.lanes import NUM_APPEND_SLOTS
from kernelflume.transport.memory import allocate_on, register

if TYPE_CHECKING:
    from kernelflume.anode.kernels import StepAttention
    from kernelflume.core.regions import MemoryRegion
    from kernelflume.transport.base import Transport
    from kernelflume.transport.lanes import LaneLayout
    from kernelflume.transport.wire import Append, Query

NUM_STAGING = 2
"""Two, so that a layer is computed while the write of the layer before is still under way."""


class LaneBuffers:
    """Memory of one lane. The first two regions are the weight node's to write, the staging is ours."""

    def __init__(self, layout: LaneLayout, transport: Transport, device: torch.device) -> None:
        """Fault the memory in and register it; may run beside the step loop."""
        geometry = layout.geometry
        self._layout = layout
        self.queries_memory = allocate_on(device, layout.query_region_bytes)
        self.appends_memory = allocate_on(device, layout.append_region_bytes)
        self.staging_memory = allocate_on(device, NUM_STAGING * layout.partial_region_bytes)
        self.query_region = register(transport, self.queries_memory)
        self.append_region = register(transport, self.appends_memory)
        self.staging_region = register(transport, self.staging_memory)
        shape = (layout.max_rows, geometry.num_query_heads, geometry.head_dim)
        self.queries = self.queries_memory.view(getattr(torch, geometry.dtype)).view(shape)
        self._partials = [
            self._partial_at(slot, rows) for slot in range(NUM_STAGING) for rows in layout.buckets
        ]

    @property
    def num_bytes(self) -> int:
        """Size of the lane's memory."""
        return num_lane_bytes(self._layout)

    def partial(self, staging: int, bucket_index: int) -> Partial:
        """Return the staging memory of a partial of a bucket's rows."""
        return self._partials[staging * len(self._layout.buckets) + bucket_index]

    def append_rows(self, slot: int, num_rows: int) -> torch.Tensor:
        """Return [num_layers, num_rows, 2, num_kv_heads, head_dim] of an append slot."""
        geometry = self._layout.geometry
        rows = self._layout.buckets[self._layout.bucket_index(num_rows)]
        start = slot * self._layout.append_slot_bytes
        memory = self.appends_memory[start : start + self._layout.append_bytes(rows)]
        shape = (geometry.num_layers, rows, 2, geometry.num_kv_heads, geometry.head_dim)
        return memory.view(getattr(torch, geometry.kv_dtype)).view(shape)[:, :num_rows]

    def partial_writes(self, remote: MemoryRegion) -> list[Write]:
        """Return the writes of each staging's buckets, at index staging * num_buckets + bucket index."""
        return [
            Write(
                self.staging_region,
                staging * self._layout.partial_region_bytes,
                remote,
                0,
                self._layout.partial_bytes(rows),
            )
            for staging in range(NUM_STAGING)
            for rows in self._layout.buckets
        ]

    def deregister(self, transport: Transport) -> None:
        """Take the regions back from the transport; the memory itself lives as long as this object."""
        for region in (self.query_region, self.append_region, self.staging_region):
            transport.deregister(region)

    def _partial_at(self, staging: int, rows: int) -> Partial:
        geometry = self._layout.geometry
        start = staging * self._layout.partial_region_bytes
        middle = start + self._layout.lse_offset(rows)
        end = start + self._layout.partial_bytes(rows)
        out = self.staging_memory[start:middle].view(getattr(torch, geometry.dtype))
        lse = self.staging_memory[middle:end].view(torch.float32)
        return Partial(
            out.view(rows, geometry.num_query_heads, geometry.head_dim),
            lse.view(rows, geometry.num_query_heads),
        )


class LaneProgress:
    """What a lane has filed and what it waits for. Owned by the exchange."""

    def __init__(self) -> None:
        self.appends_filed = 0
        self.step = -1
        """Step of ``attention``, -1 before the first."""
        self.attention: StepAttention | None = None
        """The planned step; None where its plan did not match what is held."""
        self.scan_bytes = 0
        """Bytes that a layer of the planned step reads, 0 where they are not worth timing."""
        self.num_rows = 0
        """Rows of the planned step."""
        self.query: Query | None = None
        """The one query not answered yet."""
        self.appends: dict[int, Append] = {}
        """Appends not filed yet, by counter."""
        self.staging = 0
        """Staging of the next partial."""
        self.posted = [0] * NUM_STAGING
        """Index of the last write posted from each staging."""

    def take_ready_query(self) -> Query | None:
        """Return the waiting query if every append it relies on is filed."""
        query = self.query
        if query is None or query.appends > self.appends_filed:
            return None
        self.query = None
        return query

    def take_ready_append(self) -> Append | None:
        """Return the next append in order if it waits, and count it as filed."""
        append = self.appends.pop(self.appends_filed + 1, None)
        if append is not None:
            self.appends_filed = append.counter
        return append


def num_lane_bytes(layout: LaneLayout) -> int:
    """Bytes that one lane takes on an attention node."""
    return (
        layout.query_region_bytes
        + NUM_APPEND_SLOTS * layout.append_slot_bytes
        + NUM_STAGING * layout.partial_region_bytes
    )
