"""Which captured step runs, with graphs and device clock made up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest
from tests.anode import GEOMETRY
from tests.decode_rows import chunk
from tests.pipeline_world import World

from kernelflume.transport.lanes import LaneLayout
from kernelflume.wnode.gpu.captured_steps import CapturedSteps
from kernelflume.wnode.pipeline.choice import FixedMicrobatches, LiveMicrobatches
from kernelflume.wnode.pipeline.lane_plan import LanePlan
from kernelflume.wnode.pipeline.live_profile import LiveProfile
from kernelflume.wnode.pipeline.load import Load
from kernelflume.wnode.pipeline.remote_times import RemoteTimes

if TYPE_CHECKING:
    from torch import Tensor

    from kernelflume.wnode.batch import Chunk

MAX_ROWS = 8


@dataclass
class FakeDevice:
    """Graphs that only remember, and a clock that knows how long they would have run."""

    plan: LanePlan
    world: World = field(default_factory=World)
    num_captures: int = 0
    replayed: list[tuple[int, ...]] = field(default_factory=list)
    load: Load = field(default_factory=lambda: Load(0, 0))
    marks: str = ""

    def __post_init__(self) -> None:
        self.num_captures = len(self.plan.steps)

    def replay(self, num_rows: tuple[int, ...]) -> list[Tensor]:
        assert (len(num_rows) - num_rows.count(0), max(num_rows)) in self.plan.steps
        self.replayed.append(num_rows)
        self.marks += "r"
        return cast("list[Tensor]", [f"lane {index}" for index, rows in enumerate(num_rows) if rows])

    def begin(self) -> None:
        self.marks += "b"

    def end(self) -> None:
        self.marks += "e"

    @property
    def seconds(self) -> float:
        busy = len(self.replayed[-1]) - self.replayed[-1].count(0)
        return self.world.step_s(busy, self.load)


def steps_of(microbatches: str) -> tuple[CapturedSteps, FakeDevice, LanePlan]:
    plan = LanePlan.of(microbatches, MAX_ROWS)
    device = FakeDevice(plan)
    profile = LiveProfile(device.world.weights(max_rows=MAX_ROWS), RemoteTimes())
    choice = LiveMicrobatches(profile) if plan.fixed_count is None else FixedMicrobatches(plan.fixed_count)
    return CapturedSteps(device, [device, device], profile, choice, plan), device, plan


def run(steps: CapturedSteps, device: FakeDevice, plan: LanePlan, chunks: list[Chunk]) -> list[Tensor]:
    device.load = Load.of(chunks)
    step = steps.split(chunks)
    logits, timer = steps.replay(step, LaneLayout(GEOMETRY, plan.max_rows))
    assert len(logits) == len(step.parts)
    steps.note(step, timer)
    return logits


def test_the_number_changes_between_steps_and_nothing_is_captured() -> None:
    steps, device, plan = steps_of("auto")
    assert steps.num_microbatches == 0
    captures = steps.num_captures
    rows = [chunk(number, {"a": 70_000}, "a") for number in range(6)]
    for _ in range(30):
        run(steps, device, plan, rows)
    # All rows in the first lane at first, later three in each; the other lane of the former has no kernel.
    assert device.replayed[0] == (8, 0)
    assert device.replayed[-1] == (4, 4)
    assert steps.num_microbatches == 2
    few = [chunk(number, {"a": 100}, "a") for number in range(6)]
    assert run(steps, device, plan, few) in (["lane 0"], ["lane 0", "lane 1"])
    for _ in range(3):
        run(steps, device, plan, few)
    assert device.replayed[-1] == (8, 0)
    assert steps.num_captures == captures == len(plan.steps)


def test_the_graph_alone_is_timed_and_its_stages_are_told() -> None:
    steps, device, plan = steps_of("auto")
    run(steps, device, plan, [chunk(1, {"a": 1000}, "a")])
    assert device.marks == "bre"
    assert steps.stages is not None
    assert steps.stages.graph_s == device.seconds
    attention_us = device.world.attention_us + device.world.attention_token_us * 1000
    assert steps.stages.attention_s == pytest.approx(attention_us * 1e-6)


@pytest.mark.parametrize(("microbatches", "replayed"), [("1", (8,)), ("2", (4, 4)), ("4", (2, 2, 2, 2))])
def test_a_fixed_number_uses_all_its_lanes(microbatches: str, replayed: tuple[int, ...]) -> None:
    steps, device, plan = steps_of(microbatches)
    run(steps, device, plan, [chunk(number, {"a": 100}, "a") for number in range(7)])
    assert device.replayed == [replayed]
    assert steps.num_microbatches == int(microbatches)
