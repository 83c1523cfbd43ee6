"""What happened in the cluster while somebody looked: differences between two sights, and a bounded list."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelflume.router.ui.sight import LAUNCHING, launching_nodes

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
    events += _attention_changes(before, after, at=at, epoch=epoch)
    labels = _weight_names(before) | _weight_names(after)
    old, new = _weight_states(before), _weight_states(after)
    for address in sorted(old.keys() | new.keys()):
        was, now = old.get(address, ""), new.get(address, GONE)
        if was != now:
            label = labels.get(address, address)
            events.append(Event(at=at, kind="weight", node=label, before=was, after=now, epoch=epoch))
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


def _attention_changes(before: Sight, after: Sight, *, at: float, epoch: int) -> list[Event]:
    old, new = _attention_states(before), _attention_states(after)
    events = []
    for node_id in sorted(old.keys() | new.keys()):
        was, was_start = old.get(node_id, ("", ""))
        now, now_start = new.get(node_id, (GONE, ""))
        if was and was_start and now_start and was_start != now_start:
            # The same id, another process: the one before left, whatever the new one's state is.
            events.append(Event(at=at, kind="attention", node=node_id, before=was, after=GONE, epoch=epoch))
            was = ""
        if was != now:
            events.append(Event(at=at, kind="attention", node=node_id, before=was, after=now, epoch=epoch))
    return events


def _attention_states(sight: Sight) -> dict[str, tuple[str, str]]:
    """Return state and incarnation by node id; a node that is only being started has no incarnation."""
    states = dict.fromkeys(launching_nodes(sight), (LAUNCHING, ""))
    if sight.table is not None:
        states |= {node.node_id: (str(node.state), node.incarnation) for node in sight.table.nodes}
    return states


def _weight_states(sight: Sight) -> dict[str, str]:
    # By address: a node has its name only once the store was read.
    return {node.address: _SERVING if node.trouble is None else _NOT_SERVING for node in sight.weight_nodes}


def _weight_names(sight: Sight) -> dict[str, str]:
    return {record.address: record.node_id for record in sight.weight_leases}
