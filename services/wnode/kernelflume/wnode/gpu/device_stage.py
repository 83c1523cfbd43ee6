"""The device path: kernels of the step's own graph exchange with the attention nodes (docs/adr/0011)."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import torch

from kernelflume.cuda.exchange import MAX_NODES, RowTables
from kernelflume.tensor.device import SideStream, stream_handle

if TYPE_CHECKING:
    import numpy as np

    from kernelflume.cuda.exchange import ExchangeKernels
    from kernelflume.transport.lanes import LaneLayout
    from kernelflume.wnode.gpu.lane import LaneBuffers


class QueryFirst(StrEnum):
    """When queries leave, and who attends to a row's own key and value (paper section 5.1)."""

    OFF = "off"
    """Queries, keys and values together after the whole projection; the tail's node attends to all."""
    PAPER = "paper"
    """Queries first; the tail's node waits for keys and values in every layer."""
    LOCAL = "local"
    """Queries first; the weight node attends to a row's own key, which travel once a step."""


@dataclass(frozen=True, slots=True)
class DeviceStage:
    """One lane's ``AttentionStage``."""

    kernels: ExchangeKernels
    lane: LaneBuffers
    layout: LaneLayout
    mode: QueryFirst
    query_view: int
    """Local view of ``lane.query``."""
    keys_values_view: int
    """Local view of ``lane.keys_values``."""
    status: int
    """Device address of the status word."""
    routes: torch.Tensor
    """[RowTables.num_bytes] uint8: who takes part; written between steps."""
    arrived: torch.Tensor
    """[2, MAX_NODES] int32: blocks of a put that are done, by kind and node."""
    puts: SideStream
    """For queries that travel beside what the weight node computes next."""

    @classmethod
    def create(
        cls,
        kernels: ExchangeKernels,
        lane: LaneBuffers,
        layout: LaneLayout,
        *,
        mode: QueryFirst,
        views: tuple[int, int],
        status: int,
    ) -> DeviceStage:
        """Allocate the tables of a lane that no node takes part in yet; ``views`` are of queries and KV."""
        device = lane.query.device
        memory, _, _ = RowTables(lane.max_rows).empty()
        return cls(
            kernels=kernels,
            lane=lane,
            layout=layout,
            mode=mode,
            query_view=views[0],
            keys_values_view=views[1],
            status=status,
            routes=torch.from_numpy(memory).to(device),
            arrived=torch.zeros((2, MAX_NODES), dtype=torch.int32, device=device),
            puts=SideStream(device),
        )

    @property
    def query_first(self) -> bool:
        """See ``AttentionStage``."""
        return self.mode is not QueryFirst.OFF

    def upload(self, memory: np.ndarray) -> None:
        """Replace the tables, in stream order; ``memory`` as ``RowTables.empty`` returns it."""
        self.routes.copy_(torch.from_numpy(memory).pin_memory(), non_blocking=True)

    def dispatch_query(self, layer: int, num_rows: int, *, beside: bool) -> None:
        """Put the queries into every node that holds tokens of their sequences."""
        del layer  # one region serves all: the next layer's queries exist only once these were answered
        with self.puts.fork() if beside else contextlib.nullcontext():
            self.kernels.put_queries(
                self.routes.data_ptr(),
                self.query_view,
                num_rows=num_rows,
                arrived=self.arrived[0].data_ptr(),
                stream=stream_handle(),
            )

    def dispatch_keys_values(self, layer: int, num_rows: int) -> None:
        """Put a layer's keys and values into the tails' nodes, unless they travel once a step."""
        if self.mode is not QueryFirst.LOCAL:
            self._put_keys_values(num_rows, layer, 1)

    def collect(self, layer: int, num_rows: int) -> None:
        """Wait for the partials and merge them."""
        self.kernels.merge_partials(
            self.routes.data_ptr(),
            query=self.lane.query.data_ptr(),
            keys_values=self.lane.own_keys_values.data_ptr(),
            out=self.lane.attention.data_ptr(),
            num_rows=num_rows,
            own=self.mode is QueryFirst.LOCAL,
            layer=layer,
            status=self.status,
            stream=stream_handle(),
        )

    def end(self, num_rows: int) -> None:
        """Put all layers' keys and values where they travel once a step, and move the counters on."""
        self.puts.join()
        if self.mode is QueryFirst.LOCAL:
            self._put_keys_values(num_rows, 0, self.layout.geometry.num_layers)
        self.kernels.advance_routes(
            self.routes.data_ptr(),
            num_appends=1,
            slot_bytes=self.layout.append_slot_bytes,
            stream=stream_handle(),
        )

    def _put_keys_values(self, num_rows: int, first_layer: int, num_layers: int) -> None:
        self.kernels.put_keys_values(
            self.routes.data_ptr(),
            self.keys_values_view,
            num_rows=num_rows,
            first_layer=first_layer,
            num_layers=num_layers,
            arrived=self.arrived[1].data_ptr(),
            stream=stream_handle(),
        )
