"""What happened in the cluster while somebody looked: differences between two sights, and a bounded list."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelflume.core.names import split_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.router.ui.sight import Sight

GONE = "gone"
_SERVING, _NOT_SERVING = "serving", "not serving"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened."""

    at: float
    """Unix time in seconds at which it was seen."""
    kind: str
    """attention or weight (a node's state changed), epoch (a new table), gap (nobody looked before)."""
    node: str = ""
    before: str = ""
    """The state before; '' for a node that is new."""
    after: str = ""
    """The state now; ``gone`` for a node that left."""
    epoch: int = 0
    """Of the table in which it was seen."""
    since: float = 0.0
    """Of a gap: Unix time of the look before it."""


def changes(before: Sight, after: Sight, *, at: float) -> list[Event]:
    """Return what differs between two sights, the cause before its consequences."""
    events: list[Event] = []
    epoch = after.table.epoch if after.table is not None else 0
    if after.table is not None and (before.table is None or before.table.epoch != epoch):
        events.append(Event(at=at, kind="epoch", epoch=epoch))
    labels = _weight_names(before) | _weight_names(after)
    for kind, states in (("attention", _attention_states), ("weight", _weight_states)):
        old, new = states(before), states(after)
        for node in sorted(old.keys() | new.keys()):
            was, now = old.get(node, ""), new.get(node, GONE)
            if was != now:
                label = labels.get(node, split_name(node)[0])
                events.append(Event(at=at, kind=kind, node=label, before=was, after=now, epoch=epoch))
    return events


class History:
    """The newest events; the oldest are dropped."""

    def __init__(self, *, max_events: int = 160) -> None:
        self._events: deque[Event] = deque(maxlen=max_events)
        self._looked_at: float | None = None

    def note(self, before: Sight, after: Sight, *, at: float) -> bool:
        """Add what changed since the look before; return whether that is anything."""
        self._looked_at = at
        news = changes(before, after, at=at)
        self._events.extend(news)
        return bool(news)

    def resume(self, *, at: float) -> None:
        """Say that somebody looks again: what happened since the last look is dated later than it was."""
        if self._looked_at is not None:
            self._events.append(Event(at=at, kind="gap", since=self._looked_at))

    def events(self) -> Sequence[Event]:
        """Return the events, the oldest first."""
        return tuple(self._events)


def _attention_states(sight: Sight) -> dict[str, str]:
    return {node.name: str(node.state) for node in sight.table.nodes} if sight.table is not None else {}


def _weight_states(sight: Sight) -> dict[str, str]:
    # By address: a node has its name only once the store was read.
    return {node.address: _SERVING if node.trouble is None else _NOT_SERVING for node in sight.weight_nodes}


def _weight_names(sight: Sight) -> dict[str, str]:
    return {record.address: record.node_id for record in sight.weight_leases}
