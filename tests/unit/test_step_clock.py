"""What the step clock counts as what, and which steps are told together."""

from __future__ import annotations

import pytest

from kernelflume.core.profile import StepTimes
from kernelflume.runtime.clock import ManualClock
from kernelflume.wnode.pipeline.live_profile import StepStages
from kernelflume.wnode.reporter import typical
from kernelflume.wnode.step_clock import StepClock


def run_step(clock: ManualClock, steps: StepClock, *, rows: int = 4) -> StepTimes:
    """Run two layers of 1 + 2 s projection, 4 s dispatch and 8 s remainder; 16 s before them, 32 after."""
    steps.begin()
    clock.advance(16)
    steps.mark()
    for _ in range(2):
        for seconds in (1, 4, 2, 8):
            clock.advance(seconds)
            steps.mark()
    steps.end_layers(waited_s=6)
    clock.advance(32)
    return steps.end(rows=rows, num_layers=2)


def test_every_second_is_counted_once() -> None:
    clock = ManualClock()
    times = run_step(clock, StepClock(clock))
    assert (times.rows, times.projection_s, times.attention_s) == (4, 3, 4 + 3)
    assert (times.post_attention_s, times.overhead_s) == (5, 16 + 32)
    stages = times.projection_s + times.attention_s + times.post_attention_s
    assert times.step_s == clock.now() == times.overhead_s + 2 * stages


def test_time_between_steps_is_overhead_unless_the_node_was_idle() -> None:
    clock = ManualClock()
    steps = StepClock(clock)
    run_step(clock, steps)
    clock.advance(100)
    assert run_step(clock, steps).overhead_s == 148
    steps.rest()
    clock.advance(100)
    assert run_step(clock, steps).overhead_s == 48


def test_a_captured_step_has_the_stages_that_it_is_given_and_the_rest_is_overhead() -> None:
    clock = ManualClock()
    steps = StepClock(clock)
    stages = StepStages(projection_s=1.0, attention_s=4.0, post_attention_s=2.0, outside_s=3.0, graph_s=17.0)
    steps.begin()
    clock.advance(20)
    times = steps.end_graph(stages, rows=4)
    assert times is not None
    assert (times.projection_s, times.attention_s, times.post_attention_s) == (1.0, 4.0, 2.0)
    assert (times.step_s, times.overhead_s) == (20.0, 3.0 + 3.0)
    clock.advance(5)
    steps.begin()
    clock.advance(20)
    again = steps.end_graph(stages, rows=4)
    assert again is not None
    assert again.step_s == 25.0
    assert steps.end_graph(None, rows=4) is None


def test_a_step_that_was_given_up_leaves_nothing_behind() -> None:
    clock = ManualClock()
    steps = StepClock(clock)
    run_step(clock, steps)
    steps.begin()
    steps.mark()
    clock.advance(1000)
    steps.mark()
    assert run_step(clock, steps).overhead_s == 48


def times_of(rows: int, seconds: float) -> StepTimes:
    return StepTimes(
        rows=rows,
        step_s=seconds,
        projection_s=seconds,
        attention_s=seconds,
        post_attention_s=seconds,
        overhead_s=seconds,
    )


def test_medians_are_those_of_steps_with_as_many_rows_as_the_newest() -> None:
    steps = [times_of(8, 100), *(times_of(2, seconds) for seconds in (1, 2, 50, 4, 3))]
    assert typical(steps) == times_of(2, 3)


@pytest.mark.parametrize("steps", [[], [times_of(2, 1)] * 3, [*[times_of(2, 1)] * 9, times_of(3, 1)]])
def test_too_few_steps_of_as_many_rows_say_nothing(steps: list[StepTimes]) -> None:
    assert typical(steps) is None
