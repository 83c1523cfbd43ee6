"""Timing the weight node's own part of every captured step, while no attention node is linked."""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import torch

from kernelflume.wnode.gpu.step_timer import StepTimer
from kernelflume.wnode.pipeline.weight_times import GraphTimes, WeightTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kernelflume.wnode.gpu.graph import StepGraphs
    from kernelflume.wnode.gpu.lane import LaneBuffers
    from kernelflume.wnode.gpu.program import StepProgram

_WARM_UP = 3
_TIMED = 7
_FIRST_WARM_UP = 20
"""A GPU that has idled raises its clocks first."""


def time_weights(
    program: StepProgram,
    graphs: StepGraphs,
    lanes: Sequence[LaneBuffers],
    steps: Mapping[tuple[int, int], tuple[int, ...]],
    *,
    num_layers: int,
) -> WeightTimes:
    """Time captured steps.

    No node may be in the routes: kernels that put or wait then have nothing to do. Every row has an input of
    its own, as in earnest: products of equal rows switch fewer bits, and a GPU at its power limit computes
    them up to a fifth faster.

    Args:
        program: what was captured.
        graphs: its graphs.
        lanes: its lanes, whose inputs are changed.
        steps: rows of every lane of each captured step, by (microbatches, rows of each).
        num_layers: layers of the model.
    """
    vocab_size = program.decoder.config.vocab_size
    inputs = [torch.randint_like(lane.token_ids, vocab_size) for lane in lanes]

    def prepare() -> None:
        """A step replaces its inputs by the tokens that it chose."""
        for lane, token_ids in zip(lanes, inputs, strict=True):
            lane.token_ids.copy_(token_ids)
            lane.positions.zero_()

    largest = steps[max(steps)]
    for _ in range(_FIRST_WARM_UP):
        prepare()
        graphs.replay(largest)
    parts: dict[int, tuple[float, float]] = {}
    for rows in sorted({rows for _, rows in steps}):
        ends = graphs.capture_aside(partial(program.enqueue_ends, rows))
        projections = graphs.capture_aside(partial(program.enqueue_projections, rows))
        parts[rows] = _time(prepare, ends.replay), _time(prepare, projections.replay)
    found: dict[tuple[int, int], GraphTimes] = {}
    for (count, rows), lane_rows in sorted(steps.items()):
        outside_s, projections_s = parts[rows]
        step_s = _time(prepare, partial(graphs.replay, lane_rows))
        found[count, rows] = GraphTimes(step_s, count * outside_s, count * projections_s)
    return WeightTimes(num_layers, found)


def _time(prepare: Callable[[], None], replay: Callable[[], object]) -> float:
    for _ in range(_WARM_UP):
        prepare()
        replay()
    timers = [StepTimer() for _ in range(_TIMED)]
    for timer in timers:
        prepare()
        timer.begin()
        replay()
        timer.end()
    torch.cuda.synchronize()
    return median(timer.seconds for timer in timers)
