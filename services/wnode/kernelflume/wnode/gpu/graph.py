"""Captured graphs of the decode step, one a row count; a scale event must not change their number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch

from kernelflume.tensor.capture import captured

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.wnode.gpu.program import StepProgram

_Result = TypeVar("_Result")


class StepGraphs:
    """Captures at first use and replays. Owned by the step loop's thread."""

    def __init__(self, program: StepProgram) -> None:
        self._program = program
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()
        self._graphs: dict[tuple[int, ...], tuple[torch.cuda.CUDAGraph, list[torch.Tensor]]] = {}
        self.num_captures = 0
        """Graphs captured since the start."""

    def warm(self, num_rows: tuple[int, ...]) -> None:
        """Capture the step of ``num_rows`` rows a lane, 0 for one that is idle, if that was not done yet.

        The program is run once before, with no node in the routes, so that kernels are compiled and libraries
        have their workspaces.
        """
        if num_rows in self._graphs:
            return
        self._graphs[num_rows] = self._capture(lambda: self._program.enqueue(num_rows), self._pool)
        self.num_captures += 1

    def replay(self, num_rows: tuple[int, ...]) -> list[torch.Tensor]:
        """Enqueue one step on the current stream; return busy lanes' logits, valid until the next step."""
        graph, logits = self._graphs[num_rows]
        graph.replay()
        return logits

    def capture_aside(self, enqueue: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Capture something that is no step, in memory of its own, which goes with the graph."""
        return self._capture(enqueue, torch.cuda.graph_pool_handle())[0]

    def _capture(self, enqueue: Callable[[], _Result], pool: Any) -> tuple[torch.cuda.CUDAGraph, _Result]:
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            self._stream.wait_stream(torch.cuda.default_stream())
            enqueue()
            self._stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with captured(graph, pool=pool, stream=self._stream):
                result = enqueue()
        return graph, result
