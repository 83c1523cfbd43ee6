"""A lane's share of a step as captured graphs, launched ahead of the queries they wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernelflume.anode.gpu.decode import PagedDecode
from kernelflume.anode.gpu.device_kernels import allocate_workspace
from kernelflume.anode.gpu.lane import PARITIES
from kernelflume.anode.gpu.page_table import PageTable

if TYPE_CHECKING:
    from kernelflume.anode.gpu.device_pages import DevicePages
    from kernelflume.anode.gpu.lane import LaneProgram


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    decode: PagedDecode


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
        self._done = [torch.cuda.Event() for _ in range(PARITIES)]

    @property
    def num_captures(self) -> int:
        """Graphs captured since the start."""
        return len(self._captured)

    def warm(self, num_rows: int) -> None:
        """Capture the steps of ``num_rows`` rows, if that was not done yet."""
        for parity in range(PARITIES):
            if (num_rows, parity) not in self._captured:
                self._captured[num_rows, parity] = self._capture(num_rows, parity)

    def begin(self, parity: int) -> None:
        """Wait until the last step of this parity is done, so that its staging may be filled again."""
        self._done[parity].synchronize()

    def launch(self, num_rows: int, parity: int, table: PageTable) -> None:
        """Plan and enqueue the attention of a step that ``begin`` began.

        Neither this nor what is done around it may allocate or copy from pageable memory: both can wait for
        the whole device, on which another lane's step may be waiting for this one.
        """
        captured = self._captured[num_rows, parity]
        with torch.cuda.stream(self.stream):
            captured.decode.plan(table.padded(num_rows))
            captured.graph.replay()

    def end(self, parity: int) -> None:
        """Note that everything of a step is enqueued."""
        self._done[parity].record(self.stream)

    @property
    def is_idle(self) -> bool:
        """True when every step that was ended is done."""
        return all(event.query() for event in self._done)

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
        return _Captured(graph, decode)
