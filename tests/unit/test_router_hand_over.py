"""The states of a choice that moves between weight nodes."""

from __future__ import annotations

import itertools

import pytest

from kernelflume.core.errors import LifecycleError
from kernelflume.router.hand_over import TRANSITIONS, MoveAct, MoveNews, MovePhase, MoveState


def after(*news: MoveNews) -> tuple[MovePhase, list[MoveAct]]:
    move = MoveState()
    acts = [move.take(one) for one in news]
    return move.phase, acts


def test_a_move_that_succeeds() -> None:
    assert after(MoveNews.ORDERED, MoveNews.HELD, MoveNews.TARGET_TOLD) == (
        MovePhase.SETTLED,
        [MoveAct.ASK, MoveAct.SUBMIT, MoveAct.RELEASE],
    )


def test_a_run_that_was_submitted_to_be_held_needs_no_order() -> None:
    assert after(MoveNews.HELD, MoveNews.TARGET_TOLD) == (
        MovePhase.SETTLED,
        [MoveAct.SUBMIT, MoveAct.RELEASE],
    )


def test_the_source_goes_on_when_the_target_ends() -> None:
    assert after(MoveNews.ORDERED, MoveNews.HELD, MoveNews.TARGET_ENDED) == (
        MovePhase.SETTLED,
        [MoveAct.ASK, MoveAct.SUBMIT, MoveAct.GO_ON],
    )


def test_a_source_that_is_lost_leaves_the_target_alone() -> None:
    lost = (MoveNews.HELD, MoveNews.SOURCE_ENDED)
    assert after(*lost, MoveNews.TARGET_TOLD) == (
        MovePhase.SETTLED,
        [MoveAct.SUBMIT, MoveAct.NOTHING, MoveAct.NOTHING],
    )
    assert after(*lost, MoveNews.TARGET_ENDED) == (
        MovePhase.SETTLED,
        [MoveAct.SUBMIT, MoveAct.NOTHING, MoveAct.FAIL],
    )


def test_an_order_may_come_at_any_time_and_is_given_once() -> None:
    for before in ((), (MoveNews.ORDERED,), (MoveNews.HELD,), (MoveNews.HELD, MoveNews.SOURCE_ENDED)):
        phase, acts = after(*before, MoveNews.ORDERED)
        assert acts[-1] is (MoveAct.NOTHING if before else MoveAct.ASK)
        assert phase is not MovePhase.SETTLED


@pytest.mark.parametrize("length", range(1, 6))
def test_at_every_moment_one_run_counts(length: int) -> None:
    """A model of the runs: whatever comes in whatever order, none is ever both gone and waited for."""
    for news in itertools.product(MoveNews, repeat=length):
        move, has_source, has_target = MoveState(), True, False
        for one in news:
            if (move.phase, one) not in TRANSITIONS:
                phase = move.phase
                with pytest.raises(LifecycleError):
                    move.take(one)
                assert move.phase is phase
                continue
            act = move.take(one)
            if act is MoveAct.SUBMIT:
                assert has_source
                has_target = True
            elif act is MoveAct.RELEASE or one is MoveNews.SOURCE_ENDED:
                has_source = False
            elif act is MoveAct.GO_ON:
                assert has_source
                has_target = False
            elif act is MoveAct.FAIL:
                assert not has_source
                break
            assert has_source or has_target
            if move.phase in {MovePhase.SETTLED, MovePhase.ASKED}:
                assert has_source != has_target
                has_source, has_target = True, False
