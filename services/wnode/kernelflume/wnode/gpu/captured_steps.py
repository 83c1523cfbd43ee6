"""The captured steps of all numbers of microbatches: which one runs next, and what it tells."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from kernelflume.wnode.gpu.graph import StepGraphs
from kernelflume.wnode.gpu.program import StepProgram
from kernelflume.wnode.gpu.step_timer import StepTimer
from kernelflume.wnode.gpu.weight_timer import time_weights
from kernelflume.wnode.pipeline.choice import FixedMicrobatches, LiveMicrobatches
from kernelflume.wnode.pipeline.live_profile import LiveProfile
from kernelflume.wnode.pipeline.load import Load
from kernelflume.wnode.pipeline.remote_times import RemoteTimes
from kernelflume.wnode.pipeline.split import split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from kernelflume.core.geometry import KvGeometry
    from kernelflume.transport.lanes import LaneLayout
    from kernelflume.wnode.batch import Chunk
    from kernelflume.wnode.gpu.lane import LaneBuffers
    from kernelflume.wnode.gpu.program import AttentionStage
    from kernelflume.wnode.model.decoder import Decoder
    from kernelflume.wnode.pipeline.choice import Microbatches
    from kernelflume.wnode.pipeline.lane_plan import LanePlan
    from kernelflume.wnode.pipeline.live_profile import StepStages


class Graphs(Protocol):
    """What is replayed, as ``StepGraphs`` has it."""

    num_captures: int

    def replay(self, num_rows: tuple[int, ...]) -> list[Tensor]:
        """Enqueue one step; return the busy lanes' logits."""
        ...


class Timer(Protocol):
    """What times it, as ``StepTimer`` does."""

    def begin(self) -> None:
        """Note where the step begins."""
        ...

    def end(self) -> None:
        """Note where it ends."""
        ...

    @property
    def seconds(self) -> float:
        """Seconds between both, once the step is done."""
        ...


MAX_UNDER_WAY = 2
"""Steps that may be launched and not noted."""


@dataclass(frozen=True, slots=True)
class SplitStep:
    """The rows of one step, dealt out."""

    parts: tuple[tuple[Chunk, ...], ...]
    """Rows of each microbatch, one a lane."""
    load: Load


class CapturedSteps:
    """In order for each step: ``split``, ``replay``, and ``note`` once it is done. For one thread.

    A step may be split and replayed before the one ahead of it is noted.
    """

    def __init__(
        self,
        graphs: Graphs,
        timers: Sequence[Timer],
        profile: LiveProfile,
        microbatches: Microbatches,
        plan: LanePlan,
    ) -> None:
        """Take graphs of all of the plan's steps, and a timer for each step that may be under way.

        ``microbatches`` chooses among the graphs.
        """
        self._graphs = graphs
        self._timers = deque(timers)
        self._profile = profile
        self._microbatches = microbatches
        self._num_lanes = plan.num_lanes
        self.num_microbatches = 0
        """Of the latest step that was noted; 0 before the first."""
        self.stages: StepStages | None = None
        """Where the time of the latest step went that was noted."""

    @classmethod
    def capture(
        cls,
        decoder: Decoder,
        geometry: KvGeometry,
        lanes: Sequence[LaneBuffers],
        stages: Sequence[AttentionStage],
        plan: LanePlan,
    ) -> Self:
        """Capture the plan's steps and time them, before any attention node is in the routes."""
        program = StepProgram(decoder, lanes, stages)
        graphs = StepGraphs(program)
        steps = {
            (count, rows): lane_rows(count, rows, num_lanes=plan.num_lanes) for count, rows in plan.steps
        }
        for rows_of in steps.values():
            graphs.warm(rows_of)
        weights = time_weights(program, graphs, lanes, steps, num_layers=geometry.num_layers)
        profile = LiveProfile(weights, RemoteTimes())
        fixed = plan.fixed_count
        microbatches = LiveMicrobatches(profile) if fixed is None else FixedMicrobatches(fixed)
        timers = [StepTimer() for _ in range(MAX_UNDER_WAY)]
        return cls(graphs, timers, profile, microbatches, plan)

    @property
    def num_captures(self) -> int:
        """Graphs captured since the start."""
        return self._graphs.num_captures

    def split(self, chunks: Sequence[Chunk]) -> SplitStep:
        """Deal the next step's rows out to its microbatches."""
        load = Load.of(chunks)
        parts = split(chunks, self._microbatches.choose(load))
        return SplitStep(tuple(map(tuple, parts)), load)

    def replay(self, step: SplitStep, layout: LaneLayout) -> tuple[list[Tensor], Timer]:
        """Enqueue a step; return the logits of each part's lane, and what times it."""
        rows = layout.graph_rows(max(map(len, step.parts)))
        timer = self._timers[0]
        self._timers.rotate(-1)
        # Both marks are in stream order: a step that waits behind another one is not timed while it waits.
        timer.begin()
        logits = self._graphs.replay(lane_rows(len(step.parts), rows, num_lanes=self._num_lanes))
        timer.end()
        return logits, timer

    def note(self, step: SplitStep, timer: Timer) -> None:
        """Take note of a step that is done."""
        seconds = timer.seconds
        self.num_microbatches = len(step.parts)
        self._microbatches.observe(self.num_microbatches, step.load, seconds)
        self.stages = self._profile.explain(self.num_microbatches, step.load, seconds)


def lane_rows(num_parts: int, num_rows: int, *, num_lanes: int) -> tuple[int, ...]:
    """Return the rows of every lane where the first ``num_parts`` have some; the others are idle."""
    return (num_rows,) * num_parts + (0,) * (num_lanes - num_parts)
