"""A refined profile stays one, moves within the bound and gets where the figures are."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernelflume.core.profile import Curve
from kernelflume.scaler.refinement import BOUND, moved, moved_curve

LIMIT = 0.05
times = st.floats(1e-6, 10.0)
rows = st.integers(1, 512)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    xs = sorted(draw(st.sets(rows, min_size=1, max_size=8)))
    ys = accumulate((draw(times) for _ in xs), max)
    return Curve(tuple(zip(map(float, xs), ys, strict=True)))


@given(curves(), st.lists(st.tuples(rows, st.floats(0.0, 1e6)), max_size=60))
@example(Curve(((1.0, 1e-6),)), [(2, 4e-97), (1, 1.0)])
def test_a_curve_stays_a_rising_curve_of_few_points(curve: Curve, seen: list[tuple[int, float]]) -> None:
    for at, seconds in seen:
        curve = moved_curve(curve, at, seconds, limit=LIMIT)
    values = [seconds for _, seconds in curve.points]
    assert values == sorted(values)
    assert min(values) >= 0
    assert len(values) <= 24
    assert all(curve.at(at) >= 0 for at in (1, 7, 300, 10_000))


@given(curves(), rows, st.floats(0.0, 1e6))
def test_one_figure_moves_no_point_beyond_the_bound(curve: Curve, at: int, seconds: float) -> None:
    after = moved_curve(curve, at, seconds, limit=LIMIT)
    for x in (*(x for x, _ in curve.points), at):
        assert after.at(x) == pytest.approx(curve.at(x), rel=1.0001 * LIMIT * (1 + LIMIT))


@given(curves(), rows, times)
def test_a_constant_figure_is_reached(curve: Curve, at: int, seconds: float) -> None:
    for _ in range(400):
        curve = moved_curve(curve, at, seconds, limit=LIMIT)
    assert curve.at(at) == pytest.approx(seconds, rel=1e-3)


@given(st.floats(1e-6, 1e12), st.floats(0.0, 1e15))
def test_a_move_goes_towards_what_was_seen_and_never_past_it(present: float, seen: float) -> None:
    after = moved(present, seen, limit=LIMIT)
    assert after > 0
    if seen > 0:
        nearer, further = sorted((present, seen))
        assert nearer * 0.999999 <= after <= further * 1.000001
    assert present / (1 + BOUND) / 1.01 <= after <= present * (1 + BOUND) * 1.01
