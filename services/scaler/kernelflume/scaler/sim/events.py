"""Events in the order of virtual time. Pure: what comes at equal times does not depend on who asked first."""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import NamedTuple

from kernelflume.core.errors import ConflictError


class EventKind(IntEnum):
    """What happens, in the order in which things of one moment happen."""

    ENGINE = 0
    """A decode engine has come to a step that changes something; first, as it may free memory."""
    CAPACITY = 1
    """Nodes are ready, or a wait for their end is over."""
    ARRIVAL = 2
    """A turn asks to be decoded."""
    LOOK = 3
    """The scaler looks at the pool, after all else that happens at this moment."""


class Event(NamedTuple):
    """One thing that is due. Equal times are ordered by kind, then subject, then number: all of them data."""

    time_s: float
    kind: EventKind
    subject: int
    """The engine, session or node that it is about."""
    number: int = 0
    """Tells events of one subject apart; of engines, the version of the plan that it belongs to."""


class EventQueue:
    """A priority queue of events and with it the virtual clock; used by one simulation alone."""

    def __init__(self) -> None:
        """Begin at 0 seconds with nothing due."""
        self._heap: list[Event] = []
        self._pending: set[Event] = set()
        self.now_s = 0.0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, event: Event) -> None:
        """Note what is due; times before now are due now.

        Raises:
            ConflictError: the very same event is due already, so that their order would be chance.
        """
        if event.time_s < self.now_s:
            event = Event(self.now_s, event.kind, event.subject, event.number)
        if event in self._pending:
            raise ConflictError(f"{event} is due already")
        self._pending.add(event)
        heapq.heappush(self._heap, event)

    def pop(self) -> Event | None:
        """Return the next event and set the clock to its time, or None when nothing is due any more."""
        if not self._heap:
            return None
        event = heapq.heappop(self._heap)
        self._pending.discard(event)
        self.now_s = event.time_s
        return event
