"""What is measured for a profile, and what follows from the figures."""

from __future__ import annotations

import pytest

from kernelflume.cli.profile_plan import (
    DEFAULT_ROWS,
    QUICK_ROWS,
    MeasuredGrowth,
    MeasuredSteps,
    ProfilePlan,
    assemble,
    check_rows,
    further_node_share,
    plan_profile,
    rising,
    summary,
    typical_steps,
)
from kernelflume.core.errors import ConfigurationError
from kernelflume.core.geometry import KvGeometry
from kernelflume.core.profile import PerformanceProfile, StepTimes

MIB = 1024**2
GROWTHS = (MeasuredGrowth(prewarm_s=3.0, before_s=0.1, after_s=0.11),)
GEOMETRY = KvGeometry(
    model_id="m",
    model_revision="r",
    num_layers=10,
    num_query_heads=4,
    num_kv_heads=2,
    head_dim=64,
    dtype="float32",
    kv_dtype="float32",
)  # 1 KiB a token and layer


def planned(
    *rows: int, is_quick: bool = False, pool_bytes: int = 512 * MIB, max_model_len: int = 8192
) -> ProfilePlan:
    return plan_profile(rows, GEOMETRY, is_quick=is_quick, pool_bytes=pool_bytes, max_model_len=max_model_len)


def measured(rows: int, step_s: float, held_tokens: int = 0, attention_s: float = 2e-3) -> MeasuredSteps:
    times = StepTimes(
        rows=rows,
        step_s=step_s,
        projection_s=step_s / 40,
        attention_s=attention_s,
        post_attention_s=step_s / 20,
        overhead_s=step_s / 10,
    )
    return MeasuredSteps(times=times, held_tokens=held_tokens)


def test_rows_are_the_usual_ones_unless_named() -> None:
    assert planned().rows == DEFAULT_ROWS
    assert planned(is_quick=True).rows == QUICK_ROWS
    assert planned(8, 2, 8, is_quick=True).rows == (2, 8)
    with pytest.raises(ConfigurationError, match="--rows: 0 is not from 1"):
        planned(0, 2)


def test_more_rows_than_the_weight_node_runs_are_refused_by_its_setting() -> None:
    check_rows(planned(1, 64), 64)
    with pytest.raises(
        ConfigurationError,
        match=r"--rows: 65 .* at most 64 .* max_num_seqs, which KERNELFLUME_WNODE_MAX_NUM_SEQS",
    ):
        check_rows(planned(1, 65), 64)
    short = planned(1, max_model_len=600)
    check_rows(short, short.scan_sequences)
    with pytest.raises(ConfigurationError, match=f"--max-model-len: {short.scan_sequences} .* max_num_seqs"):
        check_rows(short, short.scan_sequences - 1)


@pytest.mark.parametrize("is_quick", [False, True])
@pytest.mark.parametrize("max_model_len", [8192, 1024])
def test_a_scan_leaves_the_caches_and_fits_pool_and_model(is_quick: bool, max_model_len: int) -> None:
    plan = planned(is_quick=is_quick, max_model_len=max_model_len)
    num_bytes = plan.scan_sequences * plan.scan_tokens * GEOMETRY.token_bytes
    assert 96 * MIB <= num_bytes <= 0.9 * 512 * MIB
    assert plan.scan_tokens <= max_model_len - 500


def test_a_pool_too_small_to_measure_is_refused() -> None:
    assert planned(pool_bytes=128 * MIB)
    with pytest.raises(
        ConfigurationError, match="--attention-node-memory: 64MiB is too small: 120MiB is the least"
    ):
        planned(pool_bytes=64 * MIB)
    assert planned(pool_bytes=120 * MIB)
    with pytest.raises(
        ConfigurationError, match="--max-model-len: 512 is too short: 528 tokens is the least"
    ):
        planned(max_model_len=512)
    assert planned(max_model_len=528)


def test_a_step_is_the_mean_and_divides_as_the_medians_do() -> None:
    windows = [measured(4, 0.1, 100), measured(4, 9.0, 300), measured(4, 0.2, 200)]
    # Of the median step 0.19 s are in its parts: 10 times 7.5 and 2 ms, and 20 ms.
    merged = typical_steps(windows, mean_s=0.38, num_layers=10)
    level = 0.38 / (10 * (0.2 / 40 + 2e-3 + 0.2 / 20) + 0.02)
    times = merged.times
    assert (times.rows, times.step_s, merged.held_tokens) == (4, 0.38, 200)
    assert times.overhead_s == pytest.approx(level * 0.02)
    layer_s = times.projection_s + times.attention_s + times.post_attention_s
    assert 10 * layer_s + times.overhead_s == pytest.approx(0.38)


def test_parts_that_overlap_need_not_add_up_to_the_step() -> None:
    merged = typical_steps([measured(4, 0.1, attention_s=8e-3)], mean_s=0.2, num_layers=10)
    assert merged.times.attention_s == pytest.approx(16e-3)
    assert merged.times.step_s == 0.2


def test_where_points_fall_their_mean_stands_for_them() -> None:
    assert rising([(1.0, 1.0), (2.0, 3.0), (4.0, 2.0)]).points == ((1.0, 1.0), (2.0, 2.5), (4.0, 2.5))
    assert rising([(1.0, 3.0), (2.0, 2.0), (4.0, 1.0)]).points == ((1.0, 2.0), (2.0, 2.0), (4.0, 2.0))
    assert rising([(1.0, 3.0)]).points == ((1.0, 3.0),)


def test_a_further_node_is_told_by_all_measurements_together_and_never_saves_time() -> None:
    slower, faster = (
        MeasuredGrowth(prewarm_s=1.0, before_s=0.1, after_s=after_s) for after_s in (0.15, 0.09)
    )
    assert further_node_share([slower, faster]) == pytest.approx(0.2)
    assert further_node_share([faster]) == 0.0


def test_a_profile_rises_with_rows_and_takes_the_scan_off_the_exchange() -> None:
    steps = [measured(1, 0.1), measured(8, 0.3, held_tokens=1000), measured(32, 0.2, attention_s=3e-3)]
    profile = assemble(
        steps,
        GEOMETRY,
        hardware="here",
        bytes_per_s=1.024e9,
        growths=GROWTHS,
        prefills=[(16, 0.2), (64, 0.1)],
    )
    assert [seconds for _, seconds in profile.post_attention_s.points] == pytest.approx(
        [0.005, 0.0125, 0.0125]
    )
    # 2 ms, 1 ms of 2 ms, and 3 ms: the first two fall.
    assert [seconds for _, seconds in profile.exchange_s.points] == pytest.approx([1.5e-3, 1.5e-3, 3e-3])
    assert (profile.num_layers, profile.prewarm_s, profile.attention_bytes_per_s) == (10, 3.0, 1.024e9)
    assert profile.further_node_share == pytest.approx(0.1)
    assert PerformanceProfile.from_dict(profile.to_dict()) == profile


def test_the_summary_has_a_line_for_each_number_of_rows() -> None:
    steps = [measured(1, 0.1), measured(32, 0.2)]
    profile = assemble(
        steps, GEOMETRY, hardware="here", bytes_per_s=4e9, growths=GROWTHS, prefills=[(16, 0.2), (64, 0.1)]
    )
    lines = summary(profile, steps).splitlines()
    assert lines[0] == "m on here"
    assert lines[3].split() == ["1", "100.00", "25.00", "20.00", "50.00", "10.00"]
    assert "attention bandwidth  4.00 GB/s" in lines
    # More tokens never take less time.
    assert "prompts              150 (16), 150 (64) ms to the first token (tokens)" in lines
    assert lines[-1] == "further node         10 % of a step"
    assert "exchange             2000 (1), 2000 (32) us a layer (rows)" in lines
