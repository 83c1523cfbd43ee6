"""A lane's share of a step as captured graphs, launched ahead of the queries they wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernelflume.anode.gpu.decode import PagedDecode
from kernelflume.anode.gpu.device_kernels import allocate_workspace
from kernelflume.anode.gpu.page_table import PageTable

if TYPE_CHECKING:
    from kernelflume.anode.gpu.device_pages import DevicePages
    from kernelflume.anode.gpu.lane import LaneProgram

PARITIES = 2
"""Steps that may be under way: the next is planned and launched while one runs."""


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    decode: PagedDecode
    done: torch.cuda.Event


class LaneGraphs:
    """Graphs of one lane by rows and by parity, on a stream of its own: lanes do not wait for each other.

    Captured by a preparing thread, launched by the step loop's.
    """

    def __init__(self, program: LaneProgram, pages: DevicePages) -> None:
        device = pages.pages.device
        self._program = program
        self._pages = pages
        self.stream = torch.cuda.Stream(device)
        self._workspace = allocate_workspace(device)
        self._memory = torch.cuda.graph_pool_handle()
        self._captured: dict[tuple[int, int], _Captured] = {}

    @property
    def num_captures(self) -> int:
        """Graphs captured since the start."""
        return len(self._captured)

    def warm(self, num_rows: int) -> None:
        """Capture the steps of ``num_rows`` rows, if that was not done yet."""
        for parity in range(PARITIES):
            if (num_rows, parity) not in self._captured:
                self._captured[num_rows, parity] = self._capture(num_rows, parity)

    def launch(self, num_rows: int, parity: int, table: PageTable) -> None:
        """Plan and enqueue one step; waits until the step of the same parity before it is done."""
        captured = self._captured[num_rows, parity]
        captured.done.synchronize()
        with torch.cuda.stream(self.stream):
            captured.decode.plan(table.padded(num_rows))
            captured.graph.replay()
            captured.done.record(self.stream)

    def _capture(self, num_rows: int, parity: int) -> _Captured:
        decode = PagedDecode(
            self._pages, num_rows=num_rows, workspace=self._workspace, max_pages=self._pages.num_pages
        )
        lane = self._program.lane
        with torch.inference_mode(), torch.cuda.stream(self.stream):
            # Any table will do: the first run compiles and sizes the kernels.
            decode.plan(PageTable.one_page_each(num_rows, self._pages.num_pages))
            decode.run(0, lane.queries[:num_rows], lane.out[:num_rows], lane.lse[:num_rows])
            self.stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Other threads go on launching while this one captures.
            with torch.cuda.graph(
                graph, pool=self._memory, stream=self.stream, capture_error_mode="thread_local"
            ):
                for layer in range(self._pages.geometry.num_layers):
                    self._program.attend(layer, decode, parity)
                self._program.end()
        return _Captured(graph, decode, torch.cuda.Event())
