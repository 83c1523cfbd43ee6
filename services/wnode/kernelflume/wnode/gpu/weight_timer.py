"""Timing the weight node's own part of every captured step, while no attention node is linked."""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import torch

from kernelflume.wnode.gpu.step_timer import StepTimer
from kernelflume.wnode.pipeline.weight_times import GraphTimes, WeightTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kernelflume.wnode.gpu.graph import StepGraphs
    from kernelflume.wnode.gpu.program import StepProgram

_WARM_UP = 3
_TIMED = 7
_FIRST_WARM_UP = 20
"""A GPU that has idled raises its clocks first."""


def time_weights(
    program: StepProgram,
    graphs: StepGraphs,
    steps: Mapping[tuple[int, int], tuple[int, ...]],
    *,
    num_layers: int,
) -> WeightTimes:
    """Time captured steps.

    No node may be in the routes: kernels that put or wait then have nothing to do. The lanes' inputs are
    changed.

    Args:
        program: what was captured.
        graphs: its graphs.
        steps: rows of every lane of each captured step, by (microbatches, rows of each).
        num_layers: layers of the model.
    """
    largest = steps[max(steps)]
    for _ in range(_FIRST_WARM_UP):
        graphs.replay(largest)
    parts: dict[int, tuple[float, float]] = {}
    for rows in sorted({rows for _, rows in steps}):
        ends = graphs.capture_aside(partial(program.enqueue_ends, rows))
        projections = graphs.capture_aside(partial(program.enqueue_projections, rows))
        parts[rows] = _time(ends.replay), _time(projections.replay)
    found: dict[tuple[int, int], GraphTimes] = {}
    for (count, rows), lanes in sorted(steps.items()):
        outside_s, projections_s = parts[rows]
        step_s = _time(partial(graphs.replay, lanes))
        found[count, rows] = GraphTimes(step_s, count * outside_s, count * projections_s)
    return WeightTimes(num_layers, found)


def _time(replay: Callable[[], object]) -> float:
    for _ in range(_WARM_UP):
        replay()
    timers = [StepTimer() for _ in range(_TIMED)]
    for timer in timers:
        timer.begin()
        replay()
        timer.end()
    torch.cuda.synchronize()
    return median(timer.seconds for timer in timers)
