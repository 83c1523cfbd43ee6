"""Time as a parameter: the one place that reads a clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of monotonic time. Readings of two processes are never subtracted from each other."""

    def now(self) -> float:
        """Return seconds since an arbitrary origin; never goes back."""
        ...


class MonotonicClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Return seconds since an arbitrary origin; never goes back."""
        return time.monotonic()


class ThreadClock:
    """Processor time of the thread that asks: waits, and what others take meanwhile, do not count."""

    def now(self) -> float:
        """Return seconds since an arbitrary origin; never goes back within one thread."""
        return time.thread_time()


class ManualClock:
    """A clock that moves only when told, for tests and simulation."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """Return the time last set."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move forward by ``seconds``."""
        self._now += seconds


class Deadline:
    """A point in time that a wait must not pass."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._end = clock.now() + seconds
        self.seconds = seconds

    @property
    def remaining_s(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self._end - self._clock.now())

    @property
    def expired(self) -> bool:
        """True once no time is left."""
        return self._clock.now() >= self._end
