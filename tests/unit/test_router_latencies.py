"""Quantiles of recent latencies by slots of time."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Histogram

from kernelflume.router.latencies import Both, RecentLatencies
from kernelflume.runtime.clock import ManualClock

NEAR = 0.03


def test_quantiles_are_near_the_true_ones() -> None:
    recent = RecentLatencies(ManualClock())
    for milliseconds in range(1, 1001):
        recent.observe(milliseconds / 1000)
    last = recent.slots()[-1]
    assert last is not None
    assert last.count == 1000
    assert last.p50_s == pytest.approx(0.5, rel=NEAR)
    assert last.p99_s == pytest.approx(0.99, rel=NEAR)


def test_slots_move_with_time_and_the_oldest_are_forgotten() -> None:
    clock = ManualClock()
    recent = RecentLatencies(clock, slot_s=5.0, num_slots=3)
    recent.observe(0.1)
    clock.advance(5)
    assert [slot is not None for slot in recent.slots()] == [False, True, False]
    recent.observe(0.2)
    clock.advance(5)
    assert [slot is not None for slot in recent.slots()] == [True, True, False]
    clock.advance(5)
    assert [slot is not None for slot in recent.slots()] == [True, False, False]
    clock.advance(500)
    assert recent.slots() == [None, None, None]


def test_the_last_slots_are_taken_together() -> None:
    clock = ManualClock()
    recent = RecentLatencies(clock, slot_s=5.0, num_slots=10)
    assert recent.last(10) is None
    recent.observe(1.0)
    clock.advance(20)
    recent.observe(0.1)
    recent.observe(0.1)
    both, newest = recent.last(5), recent.last(4)
    assert both is not None
    assert newest is not None
    assert (both.count, newest.count) == (3, 2)
    assert both.p99_s == pytest.approx(1.0, rel=NEAR)
    assert newest.p99_s == pytest.approx(0.1, rel=NEAR)


def test_no_duration_at_all_is_a_duration() -> None:
    recent = RecentLatencies(ManualClock())
    recent.observe(0.0)
    last = recent.last(1)
    assert last is not None
    assert last.p50_s < 1e-5


def test_a_histogram_and_the_chart_are_told_alike() -> None:
    registry = CollectorRegistry()
    histogram = Histogram("seconds", "Text.", registry=registry)
    recent = RecentLatencies(ManualClock())
    Both(histogram, recent).observe(0.25)
    last = recent.last(1)
    assert last is not None
    assert last.count == registry.get_sample_value("seconds_count") == 1
