"""The same step on one GPU: the same kernels in one graph, with KV and attention beside the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from benchmarks.gpu.attention_side import fill_pages, make_pages
from benchmarks.gpu.history import row_history, store_tokens

from kernelflume.anode.gpu.decode import PagedDecode
from kernelflume.anode.gpu.device_kernels import allocate_workspace
from kernelflume.anode.gpu.page_table import PageTable
from kernelflume.cuda.exchange import LANE_STATE, ExchangeKernels
from kernelflume.tensor.device import architecture, stream_handle
from kernelflume.wnode.gpu.graph import StepGraphs
from kernelflume.wnode.gpu.lane import LaneBuffers
from kernelflume.wnode.gpu.program import StepProgram

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.gpu.workload import Workload

    from kernelflume.anode.gpu.device_pages import DevicePages
    from kernelflume.wnode.model.decoder import Decoder


class LocalStage:
    """An ``AttentionStage`` that files keys and values and attends on the spot."""

    query_first = False

    def __init__(self, lane: LaneBuffers, decode: PagedDecode, pages: DevicePages) -> None:
        self.lane, self.decode, self.pages = lane, decode, pages
        rows = decode.num_rows
        self.lse = torch.zeros(rows, pages.geometry.num_query_heads, device=lane.query.device)
        self.slots = torch.zeros(rows, dtype=torch.int64, device=lane.query.device)
        state = np.zeros(1, LANE_STATE)
        state["num_append_rows"] = rows
        self.state = torch.from_numpy(state.view(np.uint8)).to(lane.query.device)
        self.kernels = ExchangeKernels(
            pages.geometry, architecture=architecture(lane.query.device), timeout_s=1
        )

    def dispatch_query(self, layer: int, num_rows: int, *, beside: bool) -> None:
        """Nothing travels."""

    def dispatch_keys_values(self, layer: int, num_rows: int) -> None:
        """File the rows' keys and values."""
        self.kernels.file_append(
            self.state.data_ptr(),
            appended=self.lane.keys_values.data_ptr(),
            pool=self.pages.pages.data_ptr(),
            slots=self.slots.data_ptr(),
            slot_bytes=0,
            num_rows=num_rows,
            max_rows=self.lane.max_rows,
            page_tokens=self.pages.page_tokens,
            layer_bytes=self.pages.layer_bytes,
            first_layer=layer,
            num_layers=1,
            stream=stream_handle(),
        )

    def collect(self, layer: int, num_rows: int) -> None:
        """Attend."""
        lane = self.lane
        self.decode.run(layer, lane.query[:num_rows], lane.attention[:num_rows], self.lse)

    def end(self, num_rows: int) -> None:
        """Nothing is left."""


class Reference:
    """The whole model on one GPU."""

    def __init__(self, workload: Workload, decoder: Decoder, *, shares_layers: bool) -> None:
        self.workload = workload
        device = decoder.device
        geometry = workload.geometry
        size = workload.page_tokens
        self.pages_a_row = -(-(workload.context + 4096) // size)
        num_pages = self.pages_a_row * workload.batch
        self.pages = make_pages(workload, num_pages, device, shares_layers=shares_layers)
        fill_pages(self.pages, 7)
        self.lane = LaneBuffers.allocate(geometry, workload.batch, device)
        self.decode = PagedDecode(
            self.pages,
            num_rows=workload.batch,
            workspace=allocate_workspace(device, geometry, workload.batch),
            max_pages=num_pages,
        )
        self.stage = LocalStage(self.lane, self.decode, self.pages)
        self.graphs = StepGraphs(StepProgram(decoder, [self.lane], [self.stage]))
        self.tokens = workload.context
        self._plan()
        torch.cuda.synchronize()
        self.graphs.warm((workload.batch,))

    def _plan(self) -> None:
        size, batch = self.workload.page_tokens, self.workload.batch
        held = self.tokens + 1
        pages = -(-held // size)
        indptr = (np.arange(batch + 1) * pages).astype(np.int32)
        indices = (
            (np.arange(batch)[:, None] * self.pages_a_row + np.arange(pages)).reshape(-1).astype(np.int32)
        )
        self.decode.plan(PageTable(indptr, indices, np.full(batch, held - (pages - 1) * size, np.int32)))
        slots = (torch.arange(batch) * self.pages_a_row + self.tokens // size) * size + self.tokens % size
        self.stage.slots.copy_(slots.pin_memory(), non_blocking=True)

    def set_inputs(self, token_ids: torch.Tensor) -> None:
        """Set each row's input token and position."""
        self.lane.token_ids.copy_(token_ids)
        self.lane.positions.fill_(self.workload.context)

    def run(self, num_steps: int, *, keep_logits: bool = False) -> tuple[list[float], list[torch.Tensor]]:
        """Run steps; return the time of each in seconds, and its logits if they are to be kept."""
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2 * num_steps)]
        logits = []
        for index in range(num_steps):
            torch.cuda.synchronize()  # one wrapper: what it planned before must be done
            self._plan()
            marks[2 * index].record()
            (lane,) = self.graphs.replay((self.workload.batch,))
            marks[2 * index + 1].record()
            self.tokens += 1
            if keep_logits:
                logits.append(lane.clone())
        torch.cuda.synchronize()
        return [marks[2 * i].elapsed_time(marks[2 * i + 1]) * 1e-3 for i in range(num_steps)], logits


class RaggedReference(Reference):
    """The same with a context of each row's own, and given inputs."""

    def __init__(self, workload: Workload, decoder: Decoder, contexts: Sequence[int]) -> None:
        """File every row's history; ``workload.context`` is the longest."""
        self.row_tokens = np.asarray(contexts, np.int64)
        super().__init__(workload, decoder, shares_layers=False)
        for row, num_tokens in enumerate(contexts):
            history = row_history(workload, row, num_tokens, decoder.device)
            store_tokens(self.pages, row * self.pages_a_row, history)
        torch.cuda.synchronize()

    def take_step(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Run a step of given inputs, int64 [batch] each; return its logits [batch, vocab]."""
        self.lane.token_ids.copy_(token_ids)
        self.lane.positions.copy_(positions)
        torch.cuda.synchronize()
        self._plan()
        (logits,) = self.graphs.replay((self.workload.batch,))
        self.row_tokens += 1
        torch.cuda.synchronize()
        return logits.clone()

    def _plan(self) -> None:
        size = self.workload.page_tokens
        first = np.arange(self.workload.batch) * self.pages_a_row
        held = self.row_tokens + 1
        pages = -(-held // size)
        indptr = np.concatenate(([0], np.cumsum(pages))).astype(np.int32)
        offsets = np.arange(indptr[-1]) - np.repeat(indptr[:-1], pages)
        indices = (np.repeat(first, pages) + offsets).astype(np.int32)
        self.decode.plan(PageTable(indptr, indices, (held - (pages - 1) * size).astype(np.int32)))
        slots = (first + self.row_tokens // size) * size + self.row_tokens % size
        self.stage.slots.copy_(torch.from_numpy(slots).pin_memory(), non_blocking=True)
