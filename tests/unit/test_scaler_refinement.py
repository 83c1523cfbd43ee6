"""What nodes measure while they serve, folded into the profile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelflume.core.geometry import KvGeometry
from kernelflume.core.leases import LeaseRecord, NodeKind, NodeLoad
from kernelflume.core.profile import Curve, PerformanceProfile, StepTimes
from kernelflume.scaler.refinement import BOUND, ENOUGH, Refinement, refine

GEOMETRY = KvGeometry(
    model_id="m",
    model_revision="r",
    num_layers=10,
    num_query_heads=4,
    num_kv_heads=2,
    head_dim=25,
    dtype="float32",
    kv_dtype="float32",
)  # 4,000 bytes a token
PROFILE = PerformanceProfile(
    model_id="m",
    hardware="test",
    num_layers=10,
    projection_s=Curve(((1, 1e-3), (8, 2e-3), (32, 4e-3))),
    post_attention_s=Curve(((1, 2e-3), (8, 3e-3), (32, 6e-3))),
    step_overhead_s=Curve(((1, 5e-3), (8, 6e-3), (32, 9e-3))),
    exchange_s=Curve(((1, 1e-3),)),
    attention_bytes_per_s=4e9,
    prewarm_s=2.0,
)
TIMES = StepTimes(
    rows=8, step_s=0.1, projection_s=3e-3, attention_s=2e-3, post_attention_s=4e-3, overhead_s=7e-3
)


def weight(times: StepTimes | None, node_id: str = "w-1") -> LeaseRecord:
    load = NodeLoad(step_times=times)
    return LeaseRecord(kind=NodeKind.WEIGHT, node_id=node_id, incarnation="0", address="h:1", load=load)


def attention(rate: float, held: int = 0, node_id: str = "a-1") -> LeaseRecord:
    load = NodeLoad(scan_bytes_per_s=rate, used_tokens=held)
    return LeaseRecord(kind=NodeKind.ATTENTION, node_id=node_id, incarnation="0", address="h:2", load=load)


def jittered(number: int) -> StepTimes:
    """Return other figures, so that they count as new, but not far off."""
    return replace(TIMES, step_s=0.1 + 1e-6 * number)


Looks = list[tuple[list[LeaseRecord], list[LeaseRecord]]]


def profile_after(
    state: Refinement, *looks: tuple[list[LeaseRecord], list[LeaseRecord]]
) -> PerformanceProfile:
    for weights, nodes in looks:
        state = refine(state, weights, nodes, GEOMETRY)
    assert state.profile is not None
    return state.profile


def test_nothing_told_changes_nothing() -> None:
    state = Refinement(profile=PROFILE)
    assert refine(state, [weight(None)], [attention(0.0)], GEOMETRY).profile == PROFILE


def test_constant_figures_are_reached() -> None:
    looks = [([weight(jittered(n))], [attention(2e9 + n)]) for n in range(200)]
    found = profile_after(Refinement(profile=PROFILE), *looks)
    assert found.attention_bytes_per_s == pytest.approx(2e9, rel=1e-3)
    assert found.projection_s.at(8) == pytest.approx(3e-3, rel=1e-3)
    assert found.post_attention_s.at(8) == pytest.approx(4e-3, rel=1e-3)
    assert found.step_overhead_s.at(8) == pytest.approx(7e-3, rel=1e-3)
    assert found.exchange_s.at(8) == pytest.approx(2e-3, rel=1e-3)
    assert found.prewarm_s == PROFILE.prewarm_s


def test_the_scan_is_taken_off_the_exchange_unless_it_hides_it() -> None:
    # 4,000 tokens of 4,000 bytes at 4e9 bytes/s in 10 layers: 0.4 ms of the 2 ms.
    looks = [([weight(jittered(n))], [attention(4e9, held=4000)]) for n in range(200)]
    found = profile_after(Refinement(profile=PROFILE), *looks)
    assert found.exchange_s.at(8) == pytest.approx(1.6e-3, rel=1e-3)
    looks = [([weight(jittered(n))], [attention(4e9, held=15000)]) for n in range(200)]
    assert profile_after(Refinement(profile=PROFILE), *looks).exchange_s == PROFILE.exchange_s


def test_a_figure_counts_once_however_often_its_lease_is_seen() -> None:
    once = profile_after(Refinement(profile=PROFILE), ([weight(TIMES)], [attention(1e9)]))
    often = profile_after(Refinement(profile=PROFILE), *[([weight(TIMES)], [attention(1e9)])] * 50)
    assert often == once != PROFILE


def test_one_disturbed_look_moves_nothing_beyond_the_bound() -> None:
    worst = replace(TIMES, projection_s=9.0, attention_s=9.0, post_attention_s=9.0, overhead_s=9.0)
    weights = [weight(worst, f"w-{number}") for number in range(3)]
    found = profile_after(Refinement(profile=PROFILE), (weights, [attention(1.0), attention(2.0, 0, "a-2")]))
    assert found.attention_bytes_per_s == pytest.approx(4e9 / (1 + BOUND))
    assert found.exchange_s.at(8) == pytest.approx(1e-3 * (1 + BOUND))
    assert found.projection_s.at(8) == pytest.approx(2e-3 * (1 + BOUND))


def test_near_points_follow_and_far_ones_stay() -> None:
    looks: Looks = [([weight(replace(jittered(n), projection_s=2.5e-3))], []) for n in range(200)]
    curve = profile_after(Refinement(profile=PROFILE), *looks).projection_s
    assert curve.at(8) == pytest.approx(2.5e-3, rel=1e-3)
    assert (curve.at(1), curve.at(32)) == (1e-3, 4e-3)
    many: Looks = [([weight(replace(jittered(n), rows=4))], []) for n in range(200)]
    curve = profile_after(Refinement(profile=PROFILE), *many).projection_s
    assert curve.at(4) == pytest.approx(3e-3, rel=1e-3)
    assert curve.at(8) >= curve.at(4)  # more rows never take less time


def test_without_a_file_a_profile_is_begun_once_enough_was_seen() -> None:
    state = Refinement()
    for number in range(ENOUGH):
        assert state.profile is None
        times = replace(jittered(number), rows=1 if number % 2 else 8)
        state = refine(state, [weight(times)], [attention(2e9 + number)], GEOMETRY)
    profile = state.profile
    assert profile is not None
    assert (profile.model_id, profile.num_layers, profile.prewarm_s) == ("m", 10, 0.0)
    assert profile.projection_s == Curve(((1, 3e-3), (8, 3e-3)))
    assert profile.exchange_s == Curve(((1, 2e-3), (8, 2e-3)))
    assert profile.attention_bytes_per_s == pytest.approx(2e9)
    assert PerformanceProfile.from_dict(profile.to_dict()) == profile
    assert (state.steps, state.scans) == ((), ())


def test_a_profile_is_begun_without_the_exchange_where_the_scan_hides_it() -> None:
    def begun(held_at_8: int) -> Curve:
        state = Refinement()
        for number in range(2 * ENOUGH):
            rows, held = (8, held_at_8) if number % 2 else (1, 0)
            times = replace(jittered(number), rows=rows)
            state = refine(state, [weight(times)], [attention(4e9 + number, held)], GEOMETRY)
        assert state.profile is not None
        return state.profile.exchange_s

    assert begun(held_at_8=0) == Curve(((1, 2e-3), (8, 2e-3)))
    assert begun(held_at_8=15000) == Curve(((1, 2e-3),))


def test_no_profile_is_begun_without_a_scan_or_without_the_geometry() -> None:
    state = unknown = Refinement()
    for number in range(3 * ENOUGH):
        state = refine(state, [weight(jittered(number))], [attention(0.0)], GEOMETRY)
        unknown = refine(unknown, [weight(jittered(number))], [attention(1e9 + number)], None)
    assert state.profile is None
    assert unknown.profile is None


def test_a_profile_of_a_file_is_refined_without_the_geometry_but_for_the_exchange() -> None:
    found = refine(Refinement(profile=PROFILE), [weight(TIMES)], [attention(1e9)], None).profile
    assert found is not None
    assert found.exchange_s == PROFILE.exchange_s
    assert found.projection_s.at(8) > PROFILE.projection_s.at(8)
