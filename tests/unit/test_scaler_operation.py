from __future__ import annotations

from itertools import product

import pytest

from kernelflume.core.errors import LifecycleError
from kernelflume.scaler.operation import TRANSITIONS, Operation, OperationEvent, Phase, PhaseSpan, Result


def begin(*, initial: int = 1, target: int = 2) -> Operation:
    return Operation.begin("op", target=target, initial=initial, now_s=10.0)


def in_phase(phase: Phase) -> Operation:
    return Operation(operation_id="op", target=2, initial=1, history=(PhaseSpan(phase, 0.0),))


def after(operation: Operation, *events: OperationEvent) -> Operation:
    for event in events:
        operation = operation.after(event, now_s=20.0, reason="because")
    return operation


@pytest.mark.parametrize(
    ("initial", "target", "phase"),
    [(1, 3, Phase.LAUNCHING), (3, 1, Phase.DRAINING), (2, 2, Phase.DONE)],
)
def test_the_first_phase_follows_from_the_target(initial: int, target: int, phase: Phase) -> None:
    operation = begin(initial=initial, target=target)
    assert operation.phase is phase
    assert operation.result is (Result.SUCCEEDED if phase is Phase.DONE else None)


@pytest.mark.parametrize(("phase", "event"), list(product(Phase, OperationEvent)))
def test_events_follow_the_table_or_are_refused(phase: Phase, event: OperationEvent) -> None:
    operation = in_phase(phase)
    following = TRANSITIONS.get((phase, event))
    assert operation.allows(event) is (following is not None)
    if following is None:
        with pytest.raises(LifecycleError, match=f"op is {phase}: {event} is not legal"):
            operation.after(event, now_s=1.0)
    else:
        assert operation.after(event, now_s=1.0).phase is following


def test_every_phase_is_reached_and_left_but_the_last() -> None:
    reached = set(TRANSITIONS.values()) | {Phase.LAUNCHING, Phase.DRAINING}
    left = {phase for phase, _ in TRANSITIONS}
    assert reached == set(Phase)
    assert left == set(Phase) - {Phase.DONE}


def test_a_cancel_is_never_legal_past_the_commit_point() -> None:
    cancellable = {phase for phase, event in TRANSITIONS if event is OperationEvent.CANCEL}
    assert cancellable == {Phase.LAUNCHING, Phase.PREWARMING, Phase.READY, Phase.DRAINING}


def test_a_scale_up_succeeds() -> None:
    operation = after(
        begin(),
        OperationEvent.LAUNCHED,
        OperationEvent.PREPARED,
        OperationEvent.PUBLISH,
        OperationEvent.PUBLISHED,
    )
    assert (operation.result, operation.reason, operation.rolled_back) == (Result.SUCCEEDED, "", False)


@pytest.mark.parametrize(
    ("event", "result"), [(OperationEvent.FAIL, Result.FAILED), (OperationEvent.CANCEL, Result.CANCELLED)]
)
def test_the_result_is_told_once_the_start_is_restored(event: OperationEvent, result: Result) -> None:
    operation = after(begin(), OperationEvent.LAUNCHED, event)
    assert (operation.phase, operation.result) == (Phase.ROLLING_BACK, None)
    operation = after(operation, OperationEvent.ROLLED_BACK)
    assert (operation.result, operation.reason, operation.rolled_back) == (result, "because", True)


def test_a_failure_while_releasing_does_not_roll_back() -> None:
    events = (OperationEvent.DRAINED, OperationEvent.RETIRED, OperationEvent.FAIL)
    operation = after(begin(initial=2, target=1), *events)
    assert (operation.result, operation.rolled_back) == (Result.FAILED, False)


def test_the_history_tells_how_long_each_phase_lasted() -> None:
    operation = begin().after(OperationEvent.LAUNCHED, now_s=12.5)
    assert [(span.phase, span.seconds(20.0)) for span in operation.history] == [
        (Phase.LAUNCHING, 2.5),
        (Phase.PREWARMING, 7.5),
    ]
    operation = after(operation, OperationEvent.PREPARED, OperationEvent.PUBLISH, OperationEvent.PUBLISHED)
    assert operation.history[-1].seconds(99.0) == 0.0
