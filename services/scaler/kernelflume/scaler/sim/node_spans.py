"""When each attention node of a recorded run was paid for and took tokens. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelflume.core.recording import RecordedOperation, Recording


@dataclass(frozen=True, slots=True)
class NodeSpan:
    """One attention node, within the run: from its launch to the end of its process."""

    node_id: str
    from_s: float
    until_s: float

    @property
    def seconds(self) -> float:
        """How long it is paid for."""
        return self.until_s - self.from_s


def node_spans(recording: Recording) -> tuple[NodeSpan, ...]:
    """Return the nodes of a run in the order in which they came.

    A node is paid for from the beginning of the operation that launches it to the end of the one that takes
    it out, or that gives it up.
    """
    began = dict.fromkeys(recording.initial_nodes, 0.0)
    over: list[NodeSpan] = []

    def clipped(seconds: float) -> float:
        return min(recording.duration_s, max(0.0, seconds))

    def end(node_id: str, at_s: float) -> None:
        if node_id in began:
            over.append(NodeSpan(node_id, began.pop(node_id), clipped(at_s)))

    for operation in sorted(recording.operations, key=lambda each: each.started_s):
        for node_id in operation.node_ids:
            if operation.target > operation.initial:
                began.setdefault(node_id, clipped(operation.started_s))
                if operation.result in ("failed", "cancelled"):
                    end(node_id, operation.ended_s)
            elif operation.result == "succeeded":
                end(node_id, operation.ended_s)
    over += [NodeSpan(node_id, from_s, recording.duration_s) for node_id, from_s in began.items()]
    return tuple(sorted(over, key=lambda span: (span.from_s, span.node_id)))


def most_at_once(spans: tuple[NodeSpan, ...]) -> int:
    """Return the most nodes that were paid for at one time."""
    changes = sorted([(span.from_s, 1) for span in spans] + [(span.until_s, -1) for span in spans])
    return max(accumulate(change for _, change in changes), default=0)


def prewarms_s(recording: Recording) -> list[float]:
    """Return how long each launch took until its nodes could be published, ascending."""
    return sorted(
        operation.seconds_of("launching", "prewarming")
        for operation in recording.operations
        if operation.target > operation.initial and {"ready", "publishing"} & _phases(operation)
    )


def releases_s(recording: Recording) -> list[float]:
    """Return how long nodes lived on after nothing referred to them any more, ascending."""
    return sorted(
        operation.seconds_of("retiring", "releasing")
        for operation in recording.operations
        if operation.target < operation.initial and operation.result == "succeeded"
    )


def _phases(operation: RecordedOperation) -> set[str]:
    return {phase for phase, _ in operation.phases}
