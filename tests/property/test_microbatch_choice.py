"""Whatever the stages take: chosen microbatches are never slower than one for long."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pipeline_world import Run, World, grown

from kernelflume.wnode.pipeline.choice import LAST_CHECK, TOLERANCE
from kernelflume.wnode.pipeline.load import Load

WORLDS = st.builds(
    World,
    weight_us=st.floats(20, 400),
    weight_row_us=st.floats(0, 3),
    attention_us=st.floats(2, 60),
    attention_token_us=st.floats(1e-5, 5e-3),
    exchange_us=st.floats(0, 60),
    outside_us=st.floats(0, 2000),
    noise=st.just(0.0),
    factor=st.floats(0.7, 2.0),
)
LOADS = st.builds(Load, st.integers(1, 128), st.integers(1, 2_000_000))


@settings(max_examples=40, deadline=None)
@given(WORLDS, st.lists(LOADS, min_size=1, max_size=4))
def test_never_stays_in_a_worse_number(world: World, loads: list[Load]) -> None:
    run = Run(world)
    for load in loads:
        chosen = run.steps(400, load)
        shares = [
            world.step_s(2, grown(load, index)) / world.step_s(1, grown(load, index))
            for index in range(0, 400, 20)
        ]
        if min(shares) > 1 + 2 * TOLERANCE:
            assert chosen[80:].count(2) <= 0.1 * len(chosen)


@settings(max_examples=25, deadline=None)
@given(WORLDS, LOADS, st.integers(0, 10**6))
def test_all_steps_together_take_no_longer_than_those_of_one(world: World, load: Load, seed: int) -> None:
    world.noise, world.random = 0.01, Random(seed)  # noqa: S311 - noise
    run = Run(world)
    run.steps(LAST_CHECK, load)
    alone = sum(world.step_s(1, grown(load, index)) for index in range(LAST_CHECK))
    assert run.seconds <= alone * 1.02
