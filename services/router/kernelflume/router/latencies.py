"""Latencies of the last minutes in short slots: quantiles for charts, kept whether anybody looks or not."""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kernelflume.runtime.clock import Clock

_GROWTH = math.log(1.04)
"""Neighbouring buckets differ by 4 %: so far may a quantile be off."""
_BUCKETS_A_FOLD = 1 / _GROWTH
_LEAST_S = 1e-6
_LEAST_BUCKET = int(math.log(_LEAST_S) * _BUCKETS_A_FOLD)
_MEDIAN, _HIGH = 0.5, 0.99


class Observer(Protocol):
    """Takes durations, as a histogram of Prometheus' client does."""

    def observe(self, amount: float) -> None:
        """Take one, in seconds."""
        ...


@dataclass(frozen=True, slots=True)
class Latencies:
    """Durations of one span of time."""

    count: int
    p50_s: float
    p99_s: float


class RecentLatencies:
    """Durations by the time they were observed at. An observation costs one logarithm; used in one thread."""

    def __init__(self, clock: Clock, *, slot_s: float = 5.0, num_slots: int = 60) -> None:
        """Keep ``num_slots`` slots of ``slot_s`` seconds, the present one included."""
        self._clock = clock
        self.slot_s = slot_s
        self.num_slots = num_slots
        self._number = 0
        self._ends_at = slot_s
        self._counts: dict[int, int] = {}
        """Durations of the present slot by bucket."""
        self._past: deque[tuple[int, dict[int, int], Latencies]] = deque(maxlen=num_slots - 1)

    def observe(self, amount: float) -> None:
        """Take a duration in seconds."""
        # Once a token: no call that can be done without.
        now = self._clock.now()
        if now >= self._ends_at:
            self._turn(now)
        bucket = int(math.log(amount) * _BUCKETS_A_FOLD) if amount > _LEAST_S else _LEAST_BUCKET
        counts = self._counts
        counts[bucket] = counts.get(bucket, 0) + 1

    def slots(self) -> list[Latencies | None]:
        """Return every slot, the oldest first, the present one last; None where nothing was observed."""
        self._turn(self._clock.now())
        slots: list[Latencies | None] = [None] * self.num_slots
        for number, _, latencies in self._past:
            index = self.num_slots - 1 - (self._number - number)
            if index >= 0:
                slots[index] = latencies
        slots[-1] = _figures(self._counts)
        return slots

    def last(self, num_slots: int) -> Latencies | None:
        """Return the last slots taken together, the present one included."""
        self._turn(self._clock.now())
        total = Counter(self._counts)
        for number, counts, _ in self._past:
            if self._number - number < num_slots:
                total.update(counts)
        return _figures(total)

    def _turn(self, now: float) -> None:
        """Begin a new slot if it is time."""
        if now < self._ends_at:
            return
        figures = _figures(self._counts)
        if figures is not None:
            self._past.append((self._number, self._counts, figures))
            self._counts = {}
        self._number = int(now / self.slot_s)
        self._ends_at = (self._number + 1) * self.slot_s


class Both:
    """Tells two observers of each duration."""

    def __init__(self, first: Observer, second: Observer) -> None:
        self._first = first
        self._second = second

    def observe(self, amount: float) -> None:
        """Take a duration in seconds."""
        self._first.observe(amount)
        self._second.observe(amount)


def _figures(counts: Mapping[int, int]) -> Latencies | None:
    total = sum(counts.values())
    if not total:
        return None
    ordered = sorted(counts.items())
    return Latencies(total, _quantile(ordered, total, _MEDIAN), _quantile(ordered, total, _HIGH))


def _quantile(ordered: Iterable[tuple[int, int]], total: int, share: float) -> float:
    """Return the duration that ``share`` of all observations do not exceed."""
    rank = math.ceil(share * total)
    bucket = 0
    for bucket, count in ordered:  # noqa: B007 - the last one read is the answer
        rank -= count
        if rank <= 0:
            break
    return math.exp(bucket * _GROWTH)
