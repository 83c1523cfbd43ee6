"""The captured steps of all numbers of microbatches: which one runs next, and what it tells."""

from __future__ import annotations

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


class CapturedSteps:
    """In order for each step: ``split``, ``replay``, and ``note`` once it is done. For one thread."""

    def __init__(
        self, graphs: Graphs, timer: Timer, profile: LiveProfile, microbatches: Microbatches, plan: LanePlan
    ) -> None:
        """Take graphs of all of the plan's steps; ``microbatches`` chooses among them."""
        self._graphs = graphs
        self._timer = timer
        self._profile = profile
        self._microbatches = microbatches
        self._num_lanes = plan.num_lanes
        self._load = Load(0, 0)
        self.num_microbatches = 0
        """Of the latest step; 0 before the first."""
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
        return cls(graphs, StepTimer(), profile, microbatches, plan)

    @property
    def num_captures(self) -> int:
        """Graphs captured since the start."""
        return self._graphs.num_captures

    def split(self, chunks: Sequence[Chunk]) -> list[list[Chunk]]:
        """Deal the next step's rows out to its microbatches, one a lane."""
        self._load = Load.of(chunks)
        self.num_microbatches = self._microbatches.choose(self._load)
        return split(chunks, self.num_microbatches)

    def replay(self, parts: Sequence[Sequence[Chunk]], layout: LaneLayout) -> list[Tensor]:
        """Enqueue the step that was split last; return the logits of each part's lane."""
        rows = layout.graph_rows(max(map(len, parts)))
        self._timer.begin()
        logits = self._graphs.replay(lane_rows(len(parts), rows, num_lanes=self._num_lanes))
        self._timer.end()
        return logits

    def note(self) -> None:
        """Take note of the step, which is done."""
        seconds = self._timer.seconds
        self._microbatches.observe(self.num_microbatches, self._load, seconds)
        self.stages = self._profile.explain(self.num_microbatches, self._load, seconds)


def lane_rows(num_parts: int, num_rows: int, *, num_lanes: int) -> tuple[int, ...]:
    """Return the rows of every lane where the first ``num_parts`` have some; the others are idle."""
    return (num_rows,) * num_parts + (0,) * (num_lanes - num_parts)
