"""A lane's share of a step on the host path: for each layer wait for a flag, attend, set a flag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernelflume.anode.gpu.device_kernels import LSE_UNIT
from kernelflume.cuda.flags import FlagKind
from kernelflume.tensor.device import stream_handle

if TYPE_CHECKING:
    from kernelflume.anode.gpu.decode import PagedDecode
    from kernelflume.anode.gpu.device_pages import DevicePages
    from kernelflume.anode.gpu.lane import DeviceLane
    from kernelflume.cuda.exchange import ExchangeKernels
    from kernelflume.cuda.flags import StepFlags
    from kernelflume.cuda.memops import StreamMemops


@dataclass(frozen=True, slots=True)
class HostLaneProgram:
    """See ``StepLane``. One a parity, for each has flags of its own."""

    kernels: ExchangeKernels
    memops: StreamMemops
    lane: DeviceLane
    pages: DevicePages
    partials: torch.Tensor
    """[graph_partial_bytes] uint8, registered: what is posted to the weight node."""
    flags: StepFlags
    waits_in_layer: bool
    """Keys and values come layer by layer, for the step's own attention (query first off or paper)."""

    def attend(self, layer: int, decode: PagedDecode) -> None:
        """Wait for the queries of one layer and attend."""
        stream, rows, lane = stream_handle(), decode.num_rows, self.lane
        self.memops.wait(self.flags.address(FlagKind.QUERY, layer), stream)
        if self.waits_in_layer:
            self.memops.wait(self.flags.address(FlagKind.KEYS_VALUES, layer), stream)
            # Each layer's come to the same place: the one before is filed when they are posted.
            self._file(rows, layer, 1, layer_rows=0)
        out, lse = self._partial(rows)
        decode.run(layer, lane.queries[:rows], out, lse)
        lse.mul_(LSE_UNIT)
        # One place, too: the weight node asks for the next layer when it has this one.
        self.memops.set(self.flags.address(FlagKind.ATTENTION, layer), stream)

    def answer(self, num_rows: int) -> None:
        """Nothing: ``attend`` has set the flag at which the step loop posts."""

    def end(self) -> None:
        """Nothing: flags are cleared by the step loop."""

    def file_step(self, num_rows: int) -> None:
        """Wait for an append of all layers and file it."""
        self.memops.wait(self.flags.address(FlagKind.KEYS_VALUES, 0), stream_handle())
        layout = self.lane.layout
        bucket = layout.buckets[layout.bucket_index(num_rows)]
        self._file(num_rows, 0, layout.geometry.num_layers, layer_rows=bucket)

    def warm(self) -> None:
        """Run what is not run before its capture: loading a kernel there is not always allowed."""
        _, lse = self._partial(self.lane.layout.max_rows)
        lse.mul_(LSE_UNIT)
        torch.cuda.current_stream().synchronize()

    def _partial(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return out [rows, heads, dim] and lse [rows, heads] in what is posted."""
        geometry, start = self.lane.layout.geometry, self.lane.layout.graph_out_offset
        heads, dim = geometry.num_query_heads, geometry.head_dim
        lse = self.partials[: rows * heads * 4].view(torch.float32).view(rows, heads)
        end = start + rows * geometry.query_row_bytes
        out = self.partials[start:end].view(getattr(torch, geometry.dtype)).view(rows, heads, dim)
        return out, lse

    def _file(self, num_rows: int, first_layer: int, num_layers: int, *, layer_rows: int) -> None:
        lane = self.lane
        self.kernels.file_append(
            lane.state.data_ptr(),
            appended=lane.appends.data_ptr(),
            pool=self.pages.pages.data_ptr(),
            slots=lane.slots.data_ptr(),
            slot_bytes=lane.layout.append_slot_bytes,
            num_rows=num_rows,
            max_rows=layer_rows,
            page_tokens=self.pages.page_tokens,
            layer_bytes=self.pages.layer_bytes,
            first_layer=first_layer,
            num_layers=num_layers,
            stream=stream_handle(),
        )
