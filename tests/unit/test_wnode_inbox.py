"""The thread that takes the shell's commands: what it does before the step loop sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast
from unittest.mock import Mock

import pytest

from kernelflume.core.resumption import Resumption
from kernelflume.core.sampling import SamplingParameters
from kernelflume.wnode.inbox import CommandThread, ConstrainedSubmit, Inbox
from kernelflume.wnode.messages import StepOutput, Stop, Submit

if TYPE_CHECKING:
    from kernelflume.wnode.grammar.matcher import Matcher


class Countdown:
    """Allows tokens that each are one less than the one before."""

    def __init__(self, start: int) -> None:
        self.next = start
        self.failure = ""

    def accept(self, token: int) -> bool:
        if token != self.next:
            self.failure = f"{token} is not {self.next}"
            return False
        self.next -= 1
        return True


@pytest.mark.parametrize(("told", "is_taken"), [((), True), ((9, 8, 7), True), ((9, 7), False)])
def test_a_grammar_is_followed_to_the_end_of_what_was_generated_before(
    told: tuple[int, ...], is_taken: bool
) -> None:
    inbox = Inbox()
    events: list[Any] = []
    submit = Submit("r", [1], SamplingParameters(), b"9", resumption=Resumption(told))
    thread = CommandThread(
        Mock(recv=Mock(side_effect=[submit, Stop()])),
        inbox,
        Mock(),
        Mock(address="127.0.0.1:1"),
        events.append,
        open_matcher=lambda content: cast("Matcher", Countdown(int(content))),
    )
    thread._run()
    taken = [item for item in inbox.take() if isinstance(item, ConstrainedSubmit)]
    assert bool(taken) is is_taken
    if is_taken:
        assert cast("Countdown", taken[0].matcher).next == 9 - len(told)
        assert events == []
    else:
        [refused] = [output for event in events if isinstance(event, StepOutput) for output in event.outputs]
        assert (refused.finish_reason, refused.error, refused.invalid) == ("abort", "7 is not 8", True)
