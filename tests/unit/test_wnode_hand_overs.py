"""Orders to hold a sequence, by what it is doing when they come."""

from __future__ import annotations

from typing import Any

from tests.wnode_fakes import FakeLink, make_ledger, make_sequence

from kernelflume.runtime.clock import ManualClock
from kernelflume.wnode.hand_overs import HandOvers
from kernelflume.wnode.scheduler import BatchLimits, Scheduler


class FakeCache:
    """Names nothing, and has no answer to wait for."""

    def name_all(self, sequence: object) -> int:
        return 0

    def has_settled(self, number: int) -> bool:
        return True


def test_order_for_a_sequence_that_is_held_does_not_hold_it_again_once_it_goes_on() -> None:
    limits = BatchLimits(max_num_seqs=2, max_num_batched_tokens=8)
    scheduler = Scheduler(limits, make_ledger(FakeLink("a")))
    cache: Any = FakeCache()
    hand_overs = HandOvers(scheduler, cache, ManualClock(), timeout_s=1.0)
    sequence = make_sequence(4)
    scheduler.submit(sequence)
    scheduler.schedule()
    sequence.num_computed = 4
    sequence.output.append(1)
    hand_overs.order(sequence)
    hand_overs.order(sequence)
    assert hand_overs.take_named() == [sequence]
    hand_overs.go_on(sequence)
    assert scheduler.running == [sequence]
    assert not sequence.hands_over
