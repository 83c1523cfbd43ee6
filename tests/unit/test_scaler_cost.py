"""Budgets, horizons and the pipeline model against figures worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from kernelflume.core import pipeline, pipeline_profile
from kernelflume.core.errors import ConfigurationError
from kernelflume.core.profile import Curve, PerformanceProfile
from kernelflume.scaler import cost
from kernelflume.scaler.cost import Bound

PROFILE = PerformanceProfile(
    model_id="m",
    hardware="made up",
    num_layers=10,
    projection_s=Curve(((1, 1e-3), (11, 2e-3))),
    post_attention_s=Curve(((1, 2e-3),)),
    step_overhead_s=Curve(((1, 10e-3),)),
    exchange_s=Curve(((1, 0.0),)),
    attention_bytes_per_s=1e9,
    prewarm_s=0.4,
)


def test_curve_is_level_before_straight_between_and_goes_on_after() -> None:
    curve = Curve(((2, 1.0), (4, 3.0), (8, 4.0)))
    assert [curve.at(rows) for rows in (0, 2, 3, 4, 6, 8, 12)] == [1, 1, 2, 3, 3.5, 4, 5]
    assert Curve(((5, 2.0),)).at(100) == 2.0


@pytest.mark.parametrize("points", [(), ((2, 1.0), (2, 2.0)), ((1, -1.0),), ((1, math.nan),)])
def test_curve_of_no_measurement_is_refused(points: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(ConfigurationError, match="curve"):
        Curve(points)


def test_profile_file_is_read_back_and_a_bad_one_names_its_field() -> None:
    fields = PROFILE.to_dict()
    assert PerformanceProfile.from_dict(fields) == PROFILE
    for schema in (0, 5, None):
        with pytest.raises(ConfigurationError, match=r"schema .*: measure the model again with"):
            PerformanceProfile.from_dict(fields | {"schema": schema})
    with pytest.raises(ConfigurationError, match="attention_bytes_per_s"):
        PerformanceProfile.from_dict(fields | {"attention_bytes_per_s": 0.0})
    with pytest.raises(ConfigurationError, match="surprise"):
        PerformanceProfile.from_dict(fields | {"surprise": 1})
    del fields["prewarm_s"]
    with pytest.raises(ConfigurationError, match="prewarm_s"):
        PerformanceProfile.from_dict(fields)


def test_a_file_with_one_exchange_time_is_read() -> None:
    fields = PROFILE.to_dict() | {"schema": 1, "exchange_s": 2e-3}
    found = PerformanceProfile.from_dict(fields)
    assert found == replace(PROFILE, exchange_s=Curve(((1, 2e-3),)))
    assert found.exchange_s.at(64) == 2e-3
    assert PerformanceProfile.from_dict(found.to_dict()) == found
    for fault in (-1.0, "soon", {"points": [[1, 1e-3]]}):
        with pytest.raises(ConfigurationError, match="profile: "):
            PerformanceProfile.from_dict(fields | {"exchange_s": fault})


def test_the_exchange_counts_as_it_is_at_so_many_rows() -> None:
    dear = replace(PROFILE, exchange_s=Curve(((1, 1e-3), (11, 3e-3))))

    def added_s(rows: int, num_microbatches: int = 1) -> float:
        options = {"rows": rows, "most_held_bytes": 200e6, "num_microbatches": num_microbatches}
        return pipeline_profile.step_s(dear, **options) - pipeline_profile.step_s(PROFILE, **options)  # type: ignore[arg-type]

    assert added_s(1) == pytest.approx(10 * 1e-3)
    assert added_s(11) == pytest.approx(10 * 3e-3)
    assert added_s(11, 2) == pytest.approx(10 * 2 * dear.exchange_s.at(5.5))  # attention is the longer stage
    # As on the way from memory to SLO below, 2 ms are left of a layer: 1 ms of exchange leaves half of them.
    budget = cost.node_budget(1e9, beta_memory=0.9, beta_slo=1.0, tpot_slo_s=60e-3, profile=dear)
    assert budget.slo_bytes == pytest.approx(1e-3 * 1e9 * 10)


def test_memory_alone_counts_without_a_slo() -> None:
    budget = cost.node_budget(1000.0, beta_memory=0.9, beta_slo=0.8, profile=PROFILE)
    assert (budget.threshold_bytes, budget.bound) == (900.0, Bound.MEMORY)


def test_the_tighter_of_memory_and_slo_is_the_threshold() -> None:
    # (60 ms - 10 ms) / 10 layers = 5 ms a layer, of which the weight node takes 3; 80 % of the rest scan
    # 1 GB/s in each of 10 layers.
    budget = cost.node_budget(1e9, beta_memory=0.9, beta_slo=0.8, tpot_slo_s=60e-3, profile=PROFILE)
    assert budget.slo_bytes == pytest.approx(0.8 * 2e-3 * 1e9 * 10)
    assert budget.threshold_bytes == budget.slo_bytes
    assert budget.bound is Bound.SLO
    small = cost.node_budget(10e6, beta_memory=0.9, beta_slo=0.8, tpot_slo_s=60e-3, profile=PROFILE)
    assert (small.threshold_bytes, small.bound) == (9e6, Bound.MEMORY)


def test_overlapping_stages_leave_the_whole_layer_budget_to_attention() -> None:
    flat = replace(PROFILE, projection_s=Curve(((1, 0.5e-3),)), post_attention_s=Curve(((1, 1e-3),)))
    budget = cost.node_budget(
        1e9, beta_memory=0.9, beta_slo=1.0, tpot_slo_s=60e-3, profile=flat, rows=2, microbatches=(2,)
    )
    assert budget.slo_bytes == pytest.approx(5e-3 * 1e9 * 10)
    # Two microbatches of 3 ms do not fit 5 ms a layer.
    assert cost.node_budget(
        1e9, beta_memory=0.9, beta_slo=1.0, tpot_slo_s=60e-3, profile=PROFILE, rows=2, microbatches=(2,)
    ).slo_unreachable


def test_a_slo_below_the_weight_node_s_own_time_is_said_to_be_unreachable() -> None:
    # 3 ms of projection and FFN in each of 10 layers, and 10 ms besides, are 40 ms without any attention.
    budget = cost.node_budget(1000.0, beta_memory=0.5, beta_slo=0.8, tpot_slo_s=39e-3, profile=PROFILE)
    assert budget.slo_unreachable
    assert budget.threshold_bytes == 500.0
    reachable = cost.node_budget(1000.0, beta_memory=0.5, beta_slo=0.8, tpot_slo_s=41e-3, profile=PROFILE)
    assert not reachable.slo_unreachable


def test_fill_horizon_counts_steps_at_one_token_a_tail() -> None:
    assert cost.fill_steps(1000, 400, num_tails=3, token_bytes=10) == 20
    assert cost.fill_steps(1000, 1200, num_tails=3, token_bytes=10) == 0
    assert cost.fill_steps(1000, 400, num_tails=0, token_bytes=10) == math.inf


@pytest.mark.parametrize(("total", "nodes"), [(0, 1), (99, 1), (100, 1), (101, 2), (700, 7)])
def test_nodes_for_a_footprint(total: int, nodes: int) -> None:
    assert cost.nodes_for(total, 100) == nodes


def test_pipeline_gain_is_twofold_where_both_stages_take_the_same() -> None:
    assert pipeline.gain(1.0, 3.0, 2.0) == 2.0
    assert pipeline.gain(1.0, 0.0, 2.0) == 1.0


def test_step_adds_stages_in_series_and_overlaps_them_in_parts() -> None:
    # Attention: 20 MB over 10 layers at 1 GB/s are 2 ms a layer.
    serial = pipeline_profile.step_s(PROFILE, rows=1, most_held_bytes=20e6)
    assert serial == pytest.approx(10e-3 + 10 * (3e-3 + 2e-3))
    flat = replace(PROFILE, projection_s=Curve(((1, 0.5e-3), (2, 1e-3))), post_attention_s=Curve(((1, 0.0),)))
    pair = pipeline_profile.step_s(flat, rows=2, most_held_bytes=20e6, num_microbatches=2)
    assert pair == pytest.approx(10e-3 + 10 * 2 * 1e-3 + 0.5e-3)


def test_microbatches_pay_only_where_attention_is_long_enough() -> None:
    linear = replace(
        PROFILE,
        projection_s=Curve(((0, 0.2e-3), (64, 1e-3))),
        post_attention_s=Curve(((0, 0.2e-3), (64, 1e-3))),
    )
    assert pipeline_profile.choose_num_microbatches(linear, rows=64, most_held_bytes=0) == 1
    assert pipeline_profile.choose_num_microbatches(linear, rows=64, most_held_bytes=20e6) > 1
    assert pipeline_profile.choose_num_microbatches(linear, rows=1, most_held_bytes=20e6) == 1
    threshold = pipeline_profile.pipelining_threshold_bytes(linear, rows=64)
    assert 0 < threshold < 20e6
    assert pipeline_profile.choose_num_microbatches(linear, rows=64, most_held_bytes=0.9 * threshold) == 1
    assert pipeline_profile.choose_num_microbatches(linear, rows=64, most_held_bytes=1.1 * threshold) > 1
    assert pipeline_profile.pipelining_threshold_bytes(linear, rows=1) == math.inf
