"""When a choice that could not move is asked to move again."""

from __future__ import annotations

import pytest

from kernelflume.router.metrics import RouterMetrics
from kernelflume.router.moves import MoveOrder, MoveOutcome, Moves
from kernelflume.router.placement.decision import MoveReason
from kernelflume.runtime.clock import ManualClock


class Choice:
    """One that moves as the test says."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.moves = Moves(RouterMetrics("m", list), self.clock, timeout_s=5.0, on_ended=lambda _: None)

    def move(self, outcome: MoveOutcome, reason: MoveReason = MoveReason.ASKED_AWAY) -> None:
        self.moves.ask(MoveOrder(reason), lambda: True, None)
        self.moves.ended(outcome)

    def cooldown_s(self) -> int:
        """Let time pass until it may be asked again; return how much that was."""
        seconds = 0
        while self.moves.is_cooling_down:
            self.clock.advance(1.0)
            seconds += 1
        return seconds


def test_the_cooldown_doubles_with_each_move_in_vain_and_is_bounded() -> None:
    choice = Choice()
    assert not choice.moves.is_cooling_down
    waited = []
    for _ in range(6):
        choice.move(MoveOutcome.GONE_ON)
        waited.append(choice.cooldown_s())
    assert waited == [2, 4, 8, 16, 30, 30]


@pytest.mark.parametrize("outcome", [MoveOutcome.GONE_ON, MoveOutcome.NO_TARGET])
def test_a_move_that_succeeds_ends_the_cooldown(outcome: MoveOutcome) -> None:
    choice = Choice()
    choice.move(outcome)
    assert choice.moves.is_cooling_down
    choice.move(MoveOutcome.MOVED)  # a person had asked, or the node told that it ends
    assert not choice.moves.is_cooling_down
    choice.move(outcome)
    assert choice.cooldown_s() == 2


def test_a_move_for_balance_that_fails_holds_up_nothing() -> None:
    choice = Choice()
    choice.move(MoveOutcome.GONE_ON, MoveReason.MORE_REQUESTS)
    assert not choice.moves.is_cooling_down
