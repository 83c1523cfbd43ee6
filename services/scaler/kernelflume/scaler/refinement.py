"""The performance profile as the nodes' own figures correct it. Pure: leases in, a profile out.

A figure counts once, however often its lease is looked at. One look moves a figure by a share of its distance
to what was seen, and by no more than a bound, so that a disturbed step does not swing C_thresh; what is seen
again and again is reached all the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING

from kernelflume.core.profile import Curve, PerformanceProfile, StepTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kernelflume.core.geometry import KvGeometry
    from kernelflume.core.leases import LeaseRecord

BOUND = 0.05
"""Most that one look changes a figure, as a share of it."""
ENOUGH = 8
"""Figures of steps, and of scans, from which a profile is begun where no file gave one."""
_SHARE = 0.25
"""Share of the distance, on a logarithmic scale, that one look goes."""
_REACH_OCTAVES = 2.0
"""Points of a curve with this many times two to the power of it more or fewer rows are left alone."""
_MAX_POINTS = 24
_MAX_SAMPLES = 64
_LEAST_S = 1e-6
"""A time of 0 could not be scaled: it is taken for this."""
_LARGEST_SCAN = 0.5
"""Share of T_A beyond which the scan hides what the exchange takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSample:
    """Steps of one weight node, and how much the fullest attention node held meanwhile."""

    times: StepTimes
    most_held_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """The profile in force, and what is remembered from one look to the next."""

    profile: PerformanceProfile | None = None
    """As the file gave it at first; None without one until enough was seen."""
    seen: Mapping[str, StepTimes | float] = field(default_factory=dict)
    """Names of nodes -> their last figure, which counts no second time."""
    steps: tuple[StepSample, ...] = ()
    scans: tuple[float, ...] = ()
    """What was seen so far, until there is a profile."""


def refine(
    state: Refinement,
    weights: Iterable[LeaseRecord],
    attention: Iterable[LeaseRecord],
    geometry: KvGeometry | None,
) -> Refinement:
    """Fold what the leases say into the profile.

    Args:
        state: what ``refine`` returned before; one with the file's profile at first.
        weights: leases of the living weight nodes.
        attention: leases of the living attention nodes.
        geometry: the model's; without it no profile is begun and the exchange is left as it is.
    """
    attention = tuple(attention)
    token_bytes = geometry.token_bytes if geometry is not None else 0
    most_held_bytes = max((record.load.used_tokens for record in attention), default=0) * token_bytes
    told: dict[str, StepTimes | float] = {
        record.name: record.load.step_times for record in weights if record.load.step_times is not None
    }
    told |= {record.name: record.load.scan_bytes_per_s for record in attention}
    fresh = [figure for name, figure in told.items() if state.seen.get(name) != figure]
    steps = tuple(
        StepSample(times=figure, most_held_bytes=most_held_bytes)
        for figure in fresh
        if isinstance(figure, StepTimes) and figure.rows > 0
    )
    scans = tuple(figure for figure in fresh if isinstance(figure, float) and figure > 0)
    state = replace(state, seen=told)
    if state.profile is not None:
        return replace(state, profile=_refined(state.profile, steps, scans, knows_bytes=token_bytes > 0))
    state = replace(
        state,
        steps=(*state.steps, *steps)[-_MAX_SAMPLES:],
        scans=(*state.scans, *scans)[-_MAX_SAMPLES:],
    )
    if geometry is None or len(state.steps) < ENOUGH or len(state.scans) < ENOUGH:
        return state
    return replace(state, profile=_begun(state.steps, state.scans, geometry), steps=(), scans=())


def moved(present: float, seen: float, *, limit: float) -> float:
    """Return a figure moved towards what was seen; ``limit`` bounds the logarithm of the change."""
    if seen <= 0:
        return present
    change = _SHARE * (math.log(seen) - math.log(present))
    return present * math.exp(max(-limit, min(limit, change)))


def moved_curve(curve: Curve, rows: float, seen_s: float, *, limit: float) -> Curve:
    """Return a curve that has moved towards ``seen_s`` at ``rows``, and less so at points further away."""
    rows = float(rows)
    # All from the same least figure: else one that is lifted to it would pass a later one that is not.
    points = {x: max(_LEAST_S, y) for x, y in (*curve.points, (rows, curve.at(rows)))}
    present = points[rows]
    at_rows = moved(present, seen_s, limit=limit)
    scaled = {x: y * (at_rows / present) ** _nearness(x, rows) for x, y in points.items()}
    # More rows never take less time.
    after, before = sorted(x for x in points if x >= rows), sorted(x for x in points if x <= rows)
    scaled |= zip(after, accumulate((scaled[x] for x in after), max), strict=True)
    scaled |= zip(before[::-1], accumulate((scaled[x] for x in before[::-1]), min), strict=True)
    bounded = [
        (x, max(y * math.exp(-limit), min(y * math.exp(limit), scaled[x]))) for x, y in sorted(points.items())
    ]
    return Curve(tuple(_thinned(bounded, rows)))


def _nearness(x: float, rows: float) -> float:
    """Return 1 at as many rows, and 0 at many more or fewer."""
    octaves = abs(math.log2(max(x, 0.5) / max(rows, 0.5)))
    return max(0.0, 1.0 - octaves / _REACH_OCTAVES)


def _refined(
    profile: PerformanceProfile,
    steps: tuple[StepSample, ...],
    scans: tuple[float, ...],
    *,
    knows_bytes: bool,
) -> PerformanceProfile:
    if scans:
        rate = moved(profile.attention_bytes_per_s, median(scans), limit=math.log1p(BOUND))
        profile = replace(profile, attention_bytes_per_s=rate)
    # Several weight nodes may tell at one look: they share the bound.
    limit = math.log1p(BOUND) / max(1, len(steps))
    for step in steps:
        times = step.times
        exchange_s = (
            _exchange_s(step, profile.num_layers, profile.attention_bytes_per_s) if knows_bytes else 0.0
        )
        profile = replace(
            profile,
            projection_s=moved_curve(profile.projection_s, times.rows, times.projection_s, limit=limit),
            post_attention_s=moved_curve(
                profile.post_attention_s, times.rows, times.post_attention_s, limit=limit
            ),
            step_overhead_s=moved_curve(profile.step_overhead_s, times.rows, times.overhead_s, limit=limit),
            exchange_s=moved_curve(profile.exchange_s, times.rows, exchange_s, limit=limit)
            if exchange_s > 0
            else profile.exchange_s,
        )
    return profile


def _begun(
    steps: tuple[StepSample, ...], scans: tuple[float, ...], geometry: KvGeometry
) -> PerformanceProfile:
    bytes_per_s = median(scans)

    def curve(seconds: Callable[[StepSample], float], *, least_s: float = 0.0) -> Curve:
        by_rows: dict[int, list[float]] = {}
        for step in steps:
            if seconds(step) >= least_s:
                by_rows.setdefault(step.times.rows, []).append(seconds(step))
        if not by_rows:
            return Curve(((1.0, 0.0),))
        rows = sorted(by_rows)
        rising = accumulate((median(by_rows[row]) for row in rows), max)
        return Curve(tuple(zip(map(float, rows), rising, strict=True)))

    def exchange_s(step: StepSample) -> float:
        return _exchange_s(step, geometry.num_layers, bytes_per_s)

    return PerformanceProfile(
        model_id=geometry.model_id,
        hardware="as measured while serving",
        num_layers=geometry.num_layers,
        projection_s=curve(lambda step: step.times.projection_s),
        post_attention_s=curve(lambda step: step.times.post_attention_s),
        step_overhead_s=curve(lambda step: step.times.overhead_s),
        exchange_s=curve(exchange_s, least_s=_LEAST_S),
        attention_bytes_per_s=bytes_per_s,
        # The operations tell it: scaler.sizing keeps a running estimate of its own.
        prewarm_s=0.0,
    )


def _exchange_s(step: StepSample, num_layers: int, bytes_per_s: float) -> float:
    """Return what is left of T_A without the scan, or 0 for unknown where the scan is most of it."""
    attention_s = step.times.attention_s
    scan_s = step.most_held_bytes / (num_layers * bytes_per_s)
    return attention_s - scan_s if scan_s <= _LARGEST_SCAN * attention_s else 0.0


def _thinned(points: list[tuple[float, float]], kept: float) -> list[tuple[float, float]]:
    """Leave out what the curve changes least without, until few enough points are left."""
    while len(points) > _MAX_POINTS:
        inner = [index for index in range(1, len(points) - 1) if points[index][0] != kept]
        del points[min(inner, key=lambda index: _bend(*points[index - 1 : index + 2]))]
    return points


def _bend(before: tuple[float, float], point: tuple[float, float], after: tuple[float, float]) -> float:
    """Return how far a point lies off the line between its neighbours, as a share of itself."""
    (x0, y0), (x, y), (x1, y1) = before, point, after
    return abs(y0 + (y1 - y0) * (x - x0) / (x1 - x0) - y) / max(y, _LEAST_S)
