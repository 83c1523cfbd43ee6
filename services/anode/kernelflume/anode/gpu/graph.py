"""A weight node's steps as captured graphs, launched ahead of the queries they wait for."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernelflume.anode.gpu.decode import PagedDecode
from kernelflume.anode.gpu.device_kernels import allocate_workspace
from kernelflume.anode.gpu.lane import PARITIES
from kernelflume.anode.gpu.page_table import PageTable
from kernelflume.tensor.capture import captured
from kernelflume.tensor.device import SideStream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.anode.gpu.device_pages import DevicePages
    from kernelflume.anode.gpu.step_lane import StepLane


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    decodes: tuple[PagedDecode, ...]
    """One a lane."""


class LinkGraphs:
    """Graphs of one weight node's lanes, on a stream of their own: weight nodes do not wait for each other.

    Lanes take turns within each layer, in the order in which the weight node computes them. On streams of
    their own they overtake each other: attention of the second lane fills the GPU, and what the first has
    still to do, merging its splits and putting its partials, waits behind all of it.

    Captured by a preparing thread, launched by the step loop's.
    """

    def __init__(self, programs: Sequence[Sequence[StepLane]], pages: DevicePages, *, max_rows: int) -> None:
        """Take the program of each lane for each parity; ``max_rows`` is the most rows of a lane."""
        device = pages.pages.device
        self._programs = programs
        self._pages = pages
        self.stream = torch.cuda.Stream(device)
        self._answers = SideStream(device)
        self._workspace = allocate_workspace(device, pages.geometry, max_rows)
        self._memory = torch.cuda.graph_pool_handle()
        self._captured: dict[tuple[int, int, int], _Captured] = {}
        self._done = [torch.cuda.Event() for _ in range(PARITIES)]

    @property
    def num_captures(self) -> int:
        """Graphs captured since the start."""
        return len(self._captured)

    def warm(self, num_lanes: int, num_rows: int) -> None:
        """Capture the steps of ``num_rows`` rows in each of the first lanes, if that was not done yet."""
        for parity in range(PARITIES):
            key = (num_lanes, num_rows, parity)
            if key not in self._captured:
                self._captured[key] = self._capture(num_lanes, num_rows, parity)

    def begin(self, parity: int) -> None:
        """Wait until the last step of this parity is done, so that its staging may be filled again."""
        self._done[parity].synchronize()

    def launch(self, parity: int, num_rows: int, tables: Sequence[PageTable]) -> None:
        """Plan and enqueue the attention of a step that ``begin`` began: a table for each of the first lanes.

        Neither this nor what is done around it may allocate or copy from pageable memory: both can wait for
        the whole device, on which another weight node's step may be waiting for this one's end.
        """
        captured = self._captured[len(tables), num_rows, parity]
        with torch.cuda.stream(self.stream):
            for decode, table in zip(captured.decodes, tables, strict=True):
                decode.plan(table.padded(num_rows))
            captured.graph.replay()

    def end(self, parity: int) -> None:
        """Note that everything of a step is enqueued."""
        self._done[parity].record(self.stream)

    def is_free(self, parity: int) -> bool:
        """True when ``begin`` would not wait."""
        return bool(self._done[parity].query())

    @property
    def is_idle(self) -> bool:
        """True when every step that was ended is done."""
        return all(event.query() for event in self._done)

    def _capture(self, num_lanes: int, num_rows: int, parity: int) -> _Captured:
        programs = self._programs[parity][:num_lanes]
        decodes = tuple(
            PagedDecode(
                self._pages, num_rows=num_rows, workspace=self._workspace, max_pages=self._pages.num_pages
            )
            for _ in programs
        )
        with torch.inference_mode(), torch.cuda.stream(self.stream):
            for program, decode in zip(programs, decodes, strict=True):
                # Any table will do: the first run compiles and sizes the kernels.
                lane = program.lane
                decode.plan(PageTable.one_page_each(num_rows, self._pages.num_pages))
                decode.run(0, lane.queries[:num_rows], lane.out[:num_rows], lane.lse[:num_rows])
            self.stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with captured(graph, pool=self._memory, stream=self.stream):
                self._enqueue(programs, decodes)
        return _Captured(graph, decodes)

    def _enqueue(self, programs: Sequence[StepLane], decodes: Sequence[PagedDecode]) -> None:
        # With one lane the next wait is for what its answer brings about: nothing is there to overlap.
        beside = self._answers.fork if len(programs) > 1 else contextlib.nullcontext
        for layer in range(self._pages.geometry.num_layers):
            for program, decode in zip(programs, decodes, strict=True):
                program.attend(layer, decode)
                with beside():
                    program.answer(decode.num_rows)
        self._answers.join()
        for program in programs:
            program.end()
