"""One lane on the attention node: registered memory, and the step's program over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from kernelflume.anode.gpu.device_kernels import LSE_UNIT
from kernelflume.cuda.exchange import (
    APPEND_COUNTER_OFFSET,
    COUNTERS_BYTES,
    LANE_STATE,
    QUERY_COUNTER_OFFSET,
)
from kernelflume.tensor.device import stream_handle
from kernelflume.transport.lanes import NUM_APPEND_SLOTS
from kernelflume.transport.memory import settle

if TYPE_CHECKING:
    from kernelflume.anode.gpu.decode import PagedDecode
    from kernelflume.anode.gpu.device_pages import DevicePages
    from kernelflume.cuda.exchange import ExchangeKernels
    from kernelflume.transport.lanes import LaneLayout


PARITIES = 2
"""Steps that may be under way: the next is planned and launched while one runs."""
_COUNTS_OFFSET = LANE_STATE.fields["num_rows"][1] if LANE_STATE.fields else 0


@dataclass(frozen=True, slots=True)
class DeviceLane:
    """Fixed addresses, so that graphs may hold them."""

    layout: LaneLayout
    queries: torch.Tensor
    """[max_rows, heads, dim]: the weight node writes here."""
    appends: torch.Tensor
    """[slots, layers, max_rows, 2, KV heads, dim]: the weight node writes here."""
    counters: torch.Tensor
    """[COUNTERS_BYTES] uint8: the weight node raises them."""
    out: torch.Tensor
    """[max_rows, heads, dim]"""
    lse: torch.Tensor
    """[max_rows, heads] float32, as the kernel gives it."""
    staged_lse: torch.Tensor
    """[max_rows, heads] float32, natural logarithm."""
    state: torch.Tensor
    """[LANE_STATE] uint8"""
    slots: torch.Tensor
    """[max_rows] int64: where the next append's rows go, -1 for none."""
    arrived: torch.Tensor
    """[1] int32: blocks of a put that are done."""
    staged_slots: torch.Tensor
    """[parities, max_rows] int64, pinned."""
    staged_counts: torch.Tensor
    """[parities, 4] int32, pinned: the last fields of the state."""

    @classmethod
    def allocate(cls, layout: LaneLayout, device: torch.device) -> DeviceLane:
        """Return zeroed buffers."""
        geometry, rows = layout.geometry, layout.max_rows
        dtype, kv_dtype = getattr(torch, geometry.dtype), getattr(torch, geometry.kv_dtype)

        def zeros(*shape: int, kind: torch.dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=kind, device=device)

        heads, dim = geometry.num_query_heads, geometry.head_dim
        return cls(
            layout=layout,
            queries=zeros(rows, heads, dim, kind=dtype),
            appends=zeros(
                NUM_APPEND_SLOTS, geometry.num_layers, rows, 2, geometry.num_kv_heads, dim, kind=kv_dtype
            ),
            counters=zeros(COUNTERS_BYTES, kind=torch.uint8),
            out=zeros(rows, heads, dim, kind=dtype),
            lse=zeros(rows, heads, kind=torch.float32),
            staged_lse=zeros(rows, heads, kind=torch.float32),
            state=zeros(LANE_STATE.itemsize, kind=torch.uint8),
            slots=zeros(rows, kind=torch.int64),
            arrived=zeros(1, kind=torch.int32),
            staged_slots=torch.zeros((PARITIES, rows), dtype=torch.int64).pin_memory(),
            staged_counts=torch.zeros((PARITIES, 4), dtype=torch.int32).pin_memory(),
        )

    def reset_state(self, remote_view: int) -> None:
        """Set counters back to the start, with the view by which kernels reach the weight node."""
        counters = self.counters.data_ptr()
        state = np.zeros(1, LANE_STATE)
        state["remote"] = remote_view
        state["query_counter"] = counters + QUERY_COUNTER_OFFSET
        state["append_counter"] = counters + APPEND_COUNTER_OFFSET
        self.state.copy_(torch.from_numpy(state.view(np.uint8)))
        settle(self.state.device)

    def upload_step(self, parity: int, *, num_rows: int, slots: np.ndarray, append_slot: int) -> None:
        """Say how many rows ask in the next step, and where those that are stored go, in stream order.

        The last step of this parity must be done. ``slots`` is int64 [rows stored]; what is stored arrives in
        ``append_slot``.
        """
        counts = self.staged_counts[parity]
        counts[0], counts[1], counts[2] = num_rows, len(slots), append_slot
        self.state[_COUNTS_OFFSET:].view(torch.int32).copy_(counts, non_blocking=True)
        staged = self.staged_slots[parity, : len(slots)]
        staged.numpy()[:] = slots
        self.slots[: len(slots)].copy_(staged, non_blocking=True)


@dataclass(frozen=True, slots=True)
class LaneProgram:
    """Enqueues a lane's share of a step on the current stream: for each layer wait, attend, put back."""

    kernels: ExchangeKernels
    lane: DeviceLane
    pages: DevicePages
    out_view: int
    lse_view: int
    status: int
    waits_in_layer: bool
    """Keys and values come layer by layer, for the step's own attention (query first off or paper)."""

    def file_step(self, num_rows: int) -> None:
        """Wait for an append of all layers and file it."""
        self.kernels.wait_append(
            self.lane.state.data_ptr(), index=0, status=self.status, stream=stream_handle()
        )
        self._file(num_rows, 0, self.lane.layout.geometry.num_layers)
        self.kernels.advance_lane(
            self.lane.state.data_ptr(), num_queries=0, num_appends=1, stream=stream_handle()
        )

    def attend(self, layer: int, decode: PagedDecode) -> None:
        """Wait for the queries of one layer and attend."""
        lane, state, stream, rows = self.lane, self.lane.state.data_ptr(), stream_handle(), decode.num_rows
        self.kernels.wait_queries(state, layer=layer, status=self.status, stream=stream)
        if self.waits_in_layer:
            self.kernels.wait_append(state, index=layer, status=self.status, stream=stream)
            self._file(rows, layer, 1)
        decode.run(layer, lane.queries[:rows], lane.out[:rows], lane.lse[:rows])

    def answer(self, num_rows: int) -> None:
        """Put what ``attend`` computed."""
        lane = self.lane
        self.kernels.put_partials(
            lane.state.data_ptr(),
            out_view=self.out_view,
            lse_view=self.lse_view,
            lse=lane.lse.data_ptr(),
            lse_unit=LSE_UNIT,
            staged_lse=lane.staged_lse.data_ptr(),
            lse_offset=lane.layout.lse_offset(lane.layout.max_rows),
            num_rows=num_rows,
            arrived=lane.arrived.data_ptr(),
            stream=stream_handle(),
        )

    def end(self) -> None:
        """Move the lane's counters on."""
        num_layers = self.lane.layout.geometry.num_layers
        self.kernels.advance_lane(
            self.lane.state.data_ptr(),
            num_queries=num_layers,
            num_appends=num_layers if self.waits_in_layer else 0,
            stream=stream_handle(),
        )

    def _file(self, num_rows: int, first_layer: int, num_layers: int) -> None:
        lane = self.lane
        self.kernels.file_append(
            lane.state.data_ptr(),
            appended=lane.appends.data_ptr(),
            pool=self.pages.pages.data_ptr(),
            slots=lane.slots.data_ptr(),
            slot_bytes=lane.layout.append_slot_bytes,
            num_rows=num_rows,
            max_rows=lane.layout.max_rows,
            page_tokens=self.pages.page_tokens,
            layer_bytes=self.pages.layer_bytes,
            first_layer=first_layer,
            num_layers=num_layers,
            stream=stream_handle(),
        )
