"""Which request is due when: a state machine that is told the time and reads no clock."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelflume.cli.bench.pacing import Pace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.cli.bench.workload import Session, Turn


@dataclass(frozen=True, slots=True)
class Launch:
    """A request to send now."""

    session: Session
    session_index: int
    place: int
    """Of the turn in its session, from 0."""
    due_s: float

    @property
    def turn(self) -> Turn:
        """The turn itself."""
        return self.session.turns[self.place]


class Schedule:
    """The plan of one run. Times are seconds since its start. One task calls it."""

    def __init__(
        self,
        sessions: Sequence[Session],
        *,
        pace: Pace,
        starts: Sequence[float] | None,
        active_sessions: int,
        max_concurrency: int | None,
    ) -> None:
        """Plan a run.

        Args:
            sessions: all of it.
            pace: what makes a later turn due.
            starts: when each session begins, or None: ``active_sessions`` begin, and each end begins one.
            active_sessions: see ``starts``.
            max_concurrency: requests at a time; those that are due beyond it wait in order.
        """
        self._sessions = sessions
        self._pace = pace
        self._max_concurrency = max_concurrency
        self._began: dict[int, float] = {}
        self._future: list[tuple[float, int, int]] = []  # a heap of (due, session, place)
        self._due: deque[tuple[float, int, int]] = deque()
        self._waiting = deque(range(len(sessions)) if starts is None else ())
        self._num_running = 0
        self.num_skipped = 0
        """Turns that were given up because one before them in their session failed."""
        if starts is not None:
            self._future = [(start, index, 0) for index, start in enumerate(starts)]
            heapq.heapify(self._future)
        else:
            for _ in range(min(active_sessions, len(sessions))):
                self._begin_next(0.0)

    @property
    def done(self) -> bool:
        """True when nothing runs and nothing is to come."""
        return not (self._future or self._due or self._num_running)

    @property
    def wake_s(self) -> float | None:
        """When the next request becomes due, or None when only the end of another can bring one."""
        if self._due and self._has_room():
            return self._due[0][0]
        return self._future[0][0] if self._future else None

    def take(self, now_s: float) -> list[Launch]:
        """Return the requests to send now; each must come back by ``end``."""
        while self._future and self._future[0][0] <= now_s:
            self._due.append(heapq.heappop(self._future))
        launches = []
        while self._due and self._has_room():
            due_s, index, place = self._due.popleft()
            # By arrival times a late first request makes its session late as a whole.
            self._began.setdefault(index, due_s)
            self._num_running += 1
            launches.append(Launch(self._sessions[index], index, place, due_s))
        return launches

    def end(self, launch: Launch, now_s: float, *, goes_on: bool) -> None:
        """Take note that a request ended; without ``goes_on`` the rest of its session is given up."""
        self._num_running -= 1
        place = launch.place + 1
        left = len(launch.session.turns) - place
        if left and goes_on:
            turn = launch.session.turns[place]
            if self._pace is Pace.THINK:
                due_s = now_s + turn.think_s
            else:
                first = launch.session.turns[0]
                due_s = max(now_s, self._began[launch.session_index] + turn.offset_s - first.offset_s)
            heapq.heappush(self._future, (due_s, launch.session_index, place))
            return
        self.num_skipped += left
        self._began.pop(launch.session_index, None)
        self._begin_next(now_s)

    def _begin_next(self, now_s: float) -> None:
        if self._waiting:
            heapq.heappush(self._future, (now_s, self._waiting.popleft(), 0))

    def _has_room(self) -> bool:
        return self._max_concurrency is None or self._num_running < self._max_concurrency
