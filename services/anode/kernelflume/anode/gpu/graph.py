"""An attention node's share of a step as captured graphs, launched ahead of the queries they wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from kernelflume.anode.gpu.decode import PagedDecode
from kernelflume.anode.gpu.device_kernels import allocate_workspace
from kernelflume.anode.gpu.page_table import PageTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.anode.gpu.device_pages import DevicePages
    from kernelflume.anode.gpu.lane import LaneProgram

PARITIES = 2
"""Steps that may be under way: the next is planned and launched while one runs."""


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    decodes: tuple[PagedDecode | None, ...]
    done: torch.cuda.Event


class AttentionGraphs:
    """Graphs by rows a lane and by parity. Owned by the step loop's thread; uses one stream."""

    def __init__(self, programs: Sequence[LaneProgram], pages: DevicePages) -> None:
        device = pages.pages.device
        self._programs = tuple(programs)
        self._pages = pages
        self.stream = torch.cuda.Stream(device)
        self._workspaces = tuple(allocate_workspace(device) for _ in programs)
        self._memory = torch.cuda.graph_pool_handle()
        self._captured: dict[tuple[tuple[int, ...], int], _Captured] = {}
        self.num_captures = 0
        """Graphs captured since the start."""

    def warm(self, num_rows: tuple[int, ...]) -> None:
        """Capture the steps of ``num_rows`` rows a lane, if that was not done yet."""
        for parity in range(PARITIES):
            if (num_rows, parity) not in self._captured:
                self._captured[num_rows, parity] = self._capture(num_rows, parity)
                self.num_captures += 1

    def launch(self, num_rows: tuple[int, ...], parity: int, tables: Sequence[PageTable]) -> None:
        """Plan and enqueue one step; waits until the step of the same parity before it is done."""
        captured = self._captured[num_rows, parity]
        captured.done.synchronize()
        with torch.cuda.stream(self.stream):
            for decode, table in zip(captured.decodes, tables, strict=True):
                if decode is not None:
                    decode.plan(table)
            captured.graph.replay()
            captured.done.record(self.stream)

    def _capture(self, num_rows: tuple[int, ...], parity: int) -> _Captured:
        decodes = tuple(
            PagedDecode(self._pages, num_rows=rows, workspace=workspace, max_pages=self._pages.num_pages)
            if rows
            else None
            for rows, workspace in zip(num_rows, self._workspaces, strict=True)
        )
        with torch.inference_mode(), torch.cuda.stream(self.stream):
            for decode, program in zip(decodes, self._programs, strict=True):
                if decode is not None:
                    # Any table will do: the first run compiles and sizes the kernels.
                    decode.plan(_one_page_each(decode.num_rows, self._pages.num_pages))
                    lane, rows = program.lane, decode.num_rows
                    decode.run(0, lane.queries[:rows], lane.out[:rows], lane.lse[:rows])
            self.stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._memory, stream=self.stream):
                self._enqueue(decodes, parity)
        return _Captured(graph, decodes, torch.cuda.Event())

    def _enqueue(self, decodes: Sequence[PagedDecode | None], parity: int) -> None:
        lanes = [(program, decode) for program, decode in zip(self._programs, decodes, strict=True) if decode]
        for layer in range(self._pages.geometry.num_layers):
            for program, decode in lanes:
                program.attend(layer, decode, parity)
        for program, _ in lanes:
            program.end()


def _one_page_each(num_rows: int, num_pages: int) -> PageTable:
    pages = np.arange(num_rows, dtype=np.int32) % num_pages
    return PageTable(np.arange(num_rows + 1, dtype=np.int32), pages, np.ones(num_rows, np.int32))
