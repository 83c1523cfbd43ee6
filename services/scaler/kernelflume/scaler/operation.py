"""The life of one scale operation: a transition table and an immutable value that moves along it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from kernelflume.core.errors import LifecycleError


class Phase(StrEnum):
    """What an operation is busy with."""

    LAUNCHING = "launching"
    """Processes start; until each new node holds a lease and answers SERVING."""
    PREWARMING = "prewarming"
    """The nodes are in the table, not routable; every weight node connects and warms the path."""
    READY = "ready"
    """Prewarmed, and not routable: the policy publishes at its watermark, or gives the nodes up."""
    PUBLISHING = "publishing"
    """The one publish that makes the nodes routable. No way back from here."""
    DRAINING = "draining"
    """Old ranges stay, no new ones come; until nothing refers to the nodes."""
    RETIRING = "retiring"
    """The one publish that takes the nodes out of the table for its readers. No way back from here."""
    RELEASING = "releasing"
    """Once the last reader has that epoch: weight nodes forget the nodes, and their processes end."""
    ROLLING_BACK = "rolling_back"
    """The start is restored: new nodes end, draining ones are resumed."""
    DONE = "done"


class OperationEvent(StrEnum):
    """What can happen to an operation."""

    LAUNCHED = "launched"
    PREPARED = "prepared"
    PUBLISH = "publish"
    PUBLISHED = "published"
    DRAINED = "drained"
    RETIRED = "retired"
    RELEASED = "released"
    FAIL = "fail"
    CANCEL = "cancel"
    ROLLED_BACK = "rolled_back"


TRANSITIONS: dict[tuple[Phase, OperationEvent], Phase] = {
    (Phase.LAUNCHING, OperationEvent.LAUNCHED): Phase.PREWARMING,
    (Phase.PREWARMING, OperationEvent.PREPARED): Phase.READY,
    (Phase.READY, OperationEvent.PUBLISH): Phase.PUBLISHING,
    (Phase.PUBLISHING, OperationEvent.PUBLISHED): Phase.DONE,
    (Phase.DRAINING, OperationEvent.DRAINED): Phase.RETIRING,
    (Phase.RETIRING, OperationEvent.RETIRED): Phase.RELEASING,
    (Phase.RELEASING, OperationEvent.RELEASED): Phase.DONE,
    (Phase.LAUNCHING, OperationEvent.FAIL): Phase.ROLLING_BACK,
    (Phase.PREWARMING, OperationEvent.FAIL): Phase.ROLLING_BACK,
    (Phase.READY, OperationEvent.FAIL): Phase.ROLLING_BACK,
    (Phase.PUBLISHING, OperationEvent.FAIL): Phase.ROLLING_BACK,
    (Phase.DRAINING, OperationEvent.FAIL): Phase.ROLLING_BACK,
    (Phase.RETIRING, OperationEvent.FAIL): Phase.ROLLING_BACK,
    (Phase.RELEASING, OperationEvent.FAIL): Phase.DONE,
    (Phase.LAUNCHING, OperationEvent.CANCEL): Phase.ROLLING_BACK,
    (Phase.PREWARMING, OperationEvent.CANCEL): Phase.ROLLING_BACK,
    (Phase.READY, OperationEvent.CANCEL): Phase.ROLLING_BACK,
    (Phase.DRAINING, OperationEvent.CANCEL): Phase.ROLLING_BACK,
    (Phase.ROLLING_BACK, OperationEvent.ROLLED_BACK): Phase.DONE,
}


class Origin(StrEnum):
    """Who began an operation."""

    PERSON = "person"
    """A call of the admin API."""
    POLICY = "policy"


class Result(StrEnum):
    """How an operation ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """One phase on the scaler's own monotonic clock; the present phase has no end."""

    phase: Phase
    started_at_s: float
    ended_at_s: float | None = None

    def seconds(self, now_s: float) -> float:
        """Return how long the phase lasted, or has lasted by ``now_s``."""
        return (now_s if self.ended_at_s is None else self.ended_at_s) - self.started_at_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One change of the number of attention nodes to an absolute target."""

    operation_id: str
    target: int
    initial: int
    """Active nodes when the operation began."""
    origin: Origin = Origin.PERSON
    cause: str = ""
    """Why the policy began it."""
    is_held: bool = False
    """Prewarmed nodes wait for the policy to publish them."""
    history: tuple[PhaseSpan, ...]
    """Phases in order; the last one is the present one."""
    node_ids: tuple[str, ...] = ()
    """Nodes that are added or removed."""
    outcome: Result = Result.SUCCEEDED
    """How it will have ended, should nothing more go wrong; only told once it is done."""
    reason: str = ""
    """Why it failed, or who cancelled it."""

    @classmethod
    def begin(
        cls,
        operation_id: str,
        *,
        target: int,
        initial: int,
        now_s: float,
        origin: Origin = Origin.PERSON,
        cause: str = "",
        is_held: bool = False,
    ) -> Self:
        """Return an operation in its first phase; nothing to do is done at once."""
        phase = Phase.LAUNCHING if target > initial else Phase.DRAINING if target < initial else Phase.DONE
        return cls(
            operation_id=operation_id,
            target=target,
            initial=initial,
            origin=origin,
            cause=cause,
            is_held=is_held,
            history=(PhaseSpan(phase, now_s, now_s if phase is Phase.DONE else None),),
        )

    @property
    def phase(self) -> Phase:
        """The present phase."""
        return self.history[-1].phase

    @property
    def done(self) -> bool:
        """True once nothing more will happen."""
        return self.phase is Phase.DONE

    @property
    def result(self) -> Result | None:
        """How it ended, or None while it runs."""
        return self.outcome if self.done else None

    @property
    def rolled_back(self) -> bool:
        """True if the start was restored, or is being restored."""
        return any(span.phase is Phase.ROLLING_BACK for span in self.history)

    @property
    def prewarm_s(self) -> float | None:
        """Seconds from the start to nodes that could be published; None if it never got there."""
        ready = [span for span in self.history if span.phase is Phase.READY]
        return ready[0].started_at_s - self.history[0].started_at_s if ready else None

    def allows(self, event: OperationEvent) -> bool:
        """Return whether ``event`` is legal in the present phase."""
        return (self.phase, event) in TRANSITIONS

    def after(self, event: OperationEvent, *, now_s: float, reason: str = "") -> Self:
        """Move along the table; FAIL and CANCEL take the ``reason``.

        Raises:
            LifecycleError: the event is illegal in the present phase; nothing is changed.
        """
        following = TRANSITIONS.get((self.phase, event))
        if following is None:
            raise LifecycleError(f"operation {self.operation_id} is {self.phase}: {event} is not legal")
        ended = replace(self.history[-1], ended_at_s=now_s)
        started = PhaseSpan(following, now_s, now_s if following is Phase.DONE else None)
        moved = replace(self, history=(*self.history[:-1], ended, started))
        if event is OperationEvent.FAIL:
            return replace(moved, outcome=Result.FAILED, reason=reason)
        if event is OperationEvent.CANCEL:
            return replace(moved, outcome=Result.CANCELLED, reason=reason)
        return moved

    def with_nodes(self, *node_ids: str) -> Self:
        """Name the nodes that are added or removed."""
        return replace(self, node_ids=node_ids)
