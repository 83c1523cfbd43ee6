"""The schedule of a run under a clock that moves only when told."""

from __future__ import annotations

import math

import pytest

from kernelflume.cli.bench.pacing import Pace, start_times
from kernelflume.cli.bench.schedule import Launch, Schedule
from kernelflume.cli.bench.workload import ExtendingPrompt, Session, Turn
from kernelflume.runtime.clock import ManualClock


def session(name: str, *turns: tuple[float, float], arrival_s: float | None = None) -> Session:
    """Make a session of turns, each (offset, think time)."""
    made = tuple(Turn(name, ExtendingPrompt(1), 1, offset_s=offset, think_s=think) for offset, think in turns)
    return Session(name, made, arrival_s)


def schedule(
    *sessions: Session,
    pace: Pace = Pace.THINK,
    starts: tuple[float, ...] | None = None,
    active: int = 8,
    most: int | None = None,
) -> Schedule:
    return Schedule(sessions, pace=pace, starts=starts, active_sessions=active, max_concurrency=most)


def run(plan: Schedule, serve_s: float) -> list[tuple[str, int, float]]:
    """Serve each request in the same time and return (session, turn, time it was sent)."""
    clock, sent = ManualClock(), []
    running: list[tuple[float, Launch]] = []
    while not plan.done:
        for launch in plan.take(clock.now()):
            sent.append((launch.session.name, launch.place, clock.now()))
            running.append((clock.now() + serve_s, launch))
        wakes = [at for at in (plan.wake_s, *(end for end, _ in running)) if at is not None]
        clock.advance(max(0.0, min(wakes) - clock.now()))
        for end_s, launch in [each for each in running if each[0] <= clock.now()]:
            running.remove((end_s, launch))
            plan.end(launch, clock.now(), goes_on=True)
    return sent


def test_think_times_begin_with_the_end_of_the_answer() -> None:
    plan = schedule(session("a", (0, 0), (5, 3), (6, 2)), starts=(1.0,))
    assert run(plan, 10.0) == [("a", 0, 1.0), ("a", 1, 14.0), ("a", 2, 26.0)]


def test_arrival_times_hold_as_far_as_the_turn_before_has_ended() -> None:
    turns = session("a", (2, 0), (5, 99), (30, 99))
    assert run(schedule(turns, pace=Pace.ARRIVALS, starts=(1.0,)), 10.0) == [
        ("a", 0, 1.0),
        ("a", 1, 11.0),  # due at 4, but the answer before it took until 11
        ("a", 2, 29.0),  # 28 after the first, as in the trace
    ]


def test_sessions_of_a_trace_begin_at_its_times_whatever_is_running() -> None:
    plan = schedule(*(session(name, (0, 0)) for name in "abc"), starts=(0.0, 0.5, 0.5))
    assert run(plan, 10.0) == [("a", 0, 0.0), ("b", 0, 0.5), ("c", 0, 0.5)]


def test_a_closed_loop_begins_a_session_when_one_ends() -> None:
    plan = schedule(*(session(name, (0, 0), (0, 1)) for name in "abc"), active=2)
    found = run(plan, 2.0)
    assert found == [("a", 0, 0.0), ("b", 0, 0.0), ("a", 1, 3.0), ("b", 1, 3.0), ("c", 0, 5.0), ("c", 1, 8.0)]


def test_no_more_at_a_time_than_allowed_and_in_order() -> None:
    plan = schedule(*(session(name, (0, 0)) for name in "abcd"), starts=(0.0, 0.1, 0.2, 0.3), most=2)
    assert run(plan, 5.0) == [("a", 0, 0.0), ("b", 0, 0.1), ("c", 0, 5.0), ("d", 0, 5.1)]


def test_a_launch_tells_when_it_was_due() -> None:
    plan = schedule(session("a", (0, 0)), session("b", (0, 0)), starts=(0.0, 0.5), most=1)
    (first,) = plan.take(0.0)
    assert plan.take(2.0) == []
    assert plan.wake_s is None  # only an end can bring the next one
    plan.end(first, 3.0, goes_on=True)
    (second,) = plan.take(3.0)
    assert second.due_s == 0.5


def test_a_session_that_fails_is_given_up_and_the_next_one_begins() -> None:
    plan = schedule(session("a", (0, 0), (0, 0), (0, 0)), session("b", (0, 0)), active=1)
    (first,) = plan.take(0.0)
    plan.end(first, 1.0, goes_on=False)
    assert plan.num_skipped == 2
    (second,) = plan.take(1.0)
    assert second.session.name == "b"
    assert not plan.done
    plan.end(second, 2.0, goes_on=True)
    assert plan.done


def test_start_times() -> None:
    told = (session("a", (0, 0), arrival_s=7.0), session("b", (0, 0), arrival_s=9.5))
    assert start_times(told, request_rate=None, seed=0) == (0.0, 2.5)
    assert start_times(told, request_rate=math.inf, seed=0) == (0.0, 0.0)
    untold = (session("a", (0, 0)), session("b", (0, 0), arrival_s=1.0))
    assert start_times(untold, request_rate=None, seed=0) is None


def test_a_rate_counts_requests_and_not_sessions() -> None:
    sessions = tuple(session(str(index), *[(0, 0)] * 4) for index in range(4000))
    starts = start_times(sessions, request_rate=2.0, seed=1)
    assert starts is not None
    assert starts[0] == 0.0
    assert list(starts) == sorted(starts)
    assert starts[-1] / 3999 == pytest.approx(2.0, rel=0.05)  # four requests in two seconds
    assert start_times(sessions, request_rate=2.0, seed=1) == starts
    assert start_times(sessions, request_rate=2.0, seed=2) != starts


def test_more_active_sessions_than_there_are_begin_all_at_once() -> None:
    plan = schedule(session("a", (0, 0)), session("b", (0, 0)), active=10**20)
    assert run(plan, 1.0) == [("a", 0, 0.0), ("b", 0, 0.0)]
