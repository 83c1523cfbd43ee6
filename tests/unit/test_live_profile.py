"""What steps tell of the stages, and what is predicted from them."""

from __future__ import annotations

import pytest
from tests.pipeline_world import NUM_LAYERS, US, World

from kernelflume.wnode.pipeline.live_profile import LiveProfile
from kernelflume.wnode.pipeline.load import Load
from kernelflume.wnode.pipeline.remote_times import RemoteTimes
from kernelflume.wnode.pipeline.weight_times import GraphTimes, WeightTimes


def test_nothing_is_predicted_before_anything_was_seen() -> None:
    profile = LiveProfile(World().weights(), RemoteTimes())
    assert profile.predict(1, Load(8, 1000)) is None
    assert profile.stages(2, Load(8, 1000)) is None
    assert RemoteTimes().at(5) is None


def test_offset_and_slope_are_told_apart_once_loads_differed() -> None:
    times = RemoteTimes()
    for tokens in range(10_000, 11_000, 10):
        times.observe(tokens, (20 + tokens / 1000) * US)
    # Of one load all is slope.
    assert times.at(5_000) == pytest.approx(15 * US, rel=0.1)
    for tokens in range(1_000, 2_000, 10):
        times.observe(tokens, (20 + tokens / 1000) * US)
    assert times.at(5_000) == pytest.approx(25 * US, rel=0.02)
    assert times.at(40_000) == pytest.approx(60 * US, rel=0.03)


def test_times_that_fall_with_the_tokens_make_no_negative_slope() -> None:
    times = RemoteTimes()
    for _ in range(10):
        times.observe(1000, 50 * US)
        times.observe(4000, 40 * US)
    assert 40 * US <= (times.at(16_000) or 0) <= 50 * US


def test_one_disturbed_step_hardly_moves_what_is_known() -> None:
    times = RemoteTimes()
    for _ in range(20):
        times.observe(1000, 50 * US)
    times.observe(1000, 5000 * US)
    assert times.at(1000) == pytest.approx(55 * US, rel=0.01)


def test_memory_is_bounded_and_drops_what_was_seen_longest_ago() -> None:
    times = RemoteTimes()
    for power in range(300):
        times.observe(int(1.2**power), 1 * US)
    assert len(times._bins) <= 128
    assert times.at(1.2**299) == pytest.approx(1 * US)


def test_two_microbatches_are_predicted_from_steps_of_one() -> None:
    world = World(exchange_us=0.0)
    profile = LiveProfile(world.weights(), RemoteTimes())
    for context in (500, 2000, 8000, 16000):
        for index in range(20):
            load = Load(32, 32 * (context + index))
            profile.observe(1, load, world.step_s(1, load))
    for context in (1000, 4000, 12000):
        load = Load(32, 32 * context)
        assert profile.predict(1, load) == pytest.approx(world.step_s(1, load), rel=0.01)
        assert profile.predict(2, load) == pytest.approx(world.step_s(2, load), rel=0.03)


@pytest.mark.parametrize("context", [1000, 16000])
def test_the_weight_node_s_or_the_attention_node_s_part_of_the_exchange_is_learned(context: int) -> None:
    world = World(exchange_us=12.0)
    profile = LiveProfile(world.weights(), RemoteTimes())
    load = Load(32, 32 * context)
    for tokens in (load.num_tokens // 2, load.num_tokens):
        for _ in range(10):
            profile.observe(1, Load(32, tokens), world.step_s(1, Load(32, tokens)))
    for _ in range(4):
        profile.observe(2, load, world.step_s(2, load))
    stages = profile.stages(2, load)
    assert stages is not None
    if context == 1000:
        assert stages.weight_exchange_s == pytest.approx(12 * US, rel=0.05)
    else:
        assert stages.attention_s == pytest.approx((13 + 0.0009 * 32 * context / 2 + 12) * US, rel=0.03)
    assert profile.predict(2, load) == pytest.approx(world.step_s(2, load), rel=0.005)


def test_stages_of_a_split_step_are_told_as_one_microbatch_would_have_them() -> None:
    world = World()
    profile = LiveProfile(world.weights(), RemoteTimes())
    load = Load(32, 32 * 16000)
    seconds = world.step_s(1, load)
    profile.observe(1, load, seconds)
    one, two = profile.explain(1, load, seconds), profile.explain(2, load, world.step_s(2, load))
    assert one is not None
    assert two is not None
    stages = one.projection_s + one.attention_s + one.post_attention_s
    assert one.outside_s + NUM_LAYERS * stages == pytest.approx(seconds)
    assert (two.projection_s, two.post_attention_s) == (one.projection_s, one.post_attention_s)
    assert two.attention_s == pytest.approx(one.attention_s)
    assert two.graph_s == world.step_s(2, load)


def test_where_all_steps_are_split_attention_is_what_they_do_not_hide() -> None:
    weights = WeightTimes(10, {(2, 8): GraphTimes(step_s=1.1, outside_s=0.1, projections_s=0.4)})
    told = LiveProfile(weights, RemoteTimes()).explain(2, Load(9, 100), 1.6)
    assert told is not None
    assert told.projection_s == pytest.approx(0.04)
    assert told.post_attention_s == pytest.approx(0.06)
    assert told.attention_s == pytest.approx(0.05)


def test_graphs_are_found_by_the_rows_that_they_hold() -> None:
    weights = World().weights(max_rows=8)
    assert weights.find(1, 5) is weights.graphs[1, 8]
    assert weights.find(2, 5) is weights.graphs[2, 4]
    assert weights.find(1, 9) is None
    assert weights.counts == (1, 2)
