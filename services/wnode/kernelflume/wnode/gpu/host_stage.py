"""The host path: the graph gathers rows, sets and awaits flags; the CPU posts (paper section 5.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernelflume.cuda.exchange import RowTables
from kernelflume.cuda.flags import FlagKind
from kernelflume.tensor.device import stream_handle
from kernelflume.wnode.gpu.device_stage import QueryFirst

if TYPE_CHECKING:
    import numpy as np

    from kernelflume.cuda.exchange import ExchangeKernels
    from kernelflume.cuda.flags import StepFlags
    from kernelflume.cuda.memops import StreamMemops
    from kernelflume.wnode.gpu.lane import LaneBuffers


@dataclass(frozen=True, slots=True)
class HostStage:
    """One lane's ``AttentionStage``. Which node gets which rows is read from the same tables as ever."""

    kernels: ExchangeKernels
    memops: StreamMemops
    lane: LaneBuffers
    mode: QueryFirst
    flags: StepFlags
    routes: torch.Tensor
    """[RowTables.num_bytes] uint8: who takes part; written between steps."""

    @classmethod
    def create(
        cls,
        kernels: ExchangeKernels,
        memops: StreamMemops,
        lane: LaneBuffers,
        flags: StepFlags,
        *,
        mode: QueryFirst,
    ) -> HostStage:
        """Allocate the tables of a lane that no node takes part in yet."""
        memory, _, _ = RowTables(lane.max_rows).empty()
        routes = torch.from_numpy(memory).to(lane.query.device)
        return cls(kernels, memops, lane, mode, flags, routes)

    @property
    def query_first(self) -> bool:
        """See ``AttentionStage``."""
        return self.mode is not QueryFirst.OFF

    def upload(self, memory: np.ndarray) -> None:
        """Replace the tables, in stream order; ``memory`` as ``RowTables.empty`` returns it."""
        self.routes.copy_(torch.from_numpy(memory).pin_memory(), non_blocking=True)

    def dispatch_query(self, layer: int, num_rows: int, *, beside: bool) -> None:
        """Gather the queries of every node and say so."""
        del beside  # the copies that travel are not this stream's
        stream = stream_handle()
        self.kernels.pack_queries(
            self.routes.data_ptr(), self.lane.query.data_ptr(), num_rows=num_rows, stream=stream
        )
        self.memops.set(self.flags.address(FlagKind.QUERY, layer), stream)

    def dispatch_keys_values(self, layer: int, num_rows: int) -> None:
        """Gather a layer's keys and values and say so, unless they travel once a step."""
        if self.mode is not QueryFirst.LOCAL:
            self._pack_keys_values(num_rows, layer, 1)

    def collect(self, layer: int, num_rows: int) -> None:
        """Wait until the CPU says that all partials are here, and merge them."""
        stream = stream_handle()
        self.memops.wait(self.flags.address(FlagKind.ATTENTION, layer), stream)
        self.kernels.merge_partials(
            self.routes.data_ptr(),
            query=self.lane.query.data_ptr(),
            keys_values=self.lane.own_keys_values.data_ptr(),
            out=self.lane.attention.data_ptr(),
            num_rows=num_rows,
            own=self.mode is QueryFirst.LOCAL,
            layer=layer,
            status=0,  # the kernel itself waits for nothing
            stream=stream,
        )

    def end(self, num_rows: int) -> None:
        """Gather all layers' keys and values where they travel once a step."""
        if self.mode is QueryFirst.LOCAL:
            self._pack_keys_values(num_rows, 0, self.lane.keys_values.shape[0])

    def _pack_keys_values(self, num_rows: int, first_layer: int, num_layers: int) -> None:
        stream = stream_handle()
        self.kernels.pack_keys_values(
            self.routes.data_ptr(),
            self.lane.keys_values.data_ptr(),
            num_rows=num_rows,
            first_layer=first_layer,
            num_layers=num_layers,
            stream=stream,
        )
        self.memops.set(self.flags.address(FlagKind.KEYS_VALUES, first_layer), stream)
