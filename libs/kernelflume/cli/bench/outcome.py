"""What is kept of a request when it has ended, and the gaps between tokens of all."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelflume.cli.bench.answer import OK

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Outcome:
    """A request that ended, whatever way. Times are seconds since the run's start, spans are seconds."""

    session: str
    turn: int
    status: str
    detail: str
    due_s: float
    sent_s: float
    ttft_s: float | None
    e2e_s: float
    num_prompt: int
    """As the server counted, as planned where it did not."""
    num_output: int
    num_cached: int | None
    """As the server told; None where it did not."""
    hit_tokens: int
    """What a cache without an end would have held."""
    node: str

    @property
    def ok(self) -> bool:
        """True when the answer came whole."""
        return self.status == OK

    @property
    def tpot_s(self) -> float | None:
        """Mean time of a token after the first; None with fewer than two."""
        if self.ttft_s is None or self.num_output < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (self.num_output - 1)

    @property
    def late_s(self) -> float:
        """How long after it was due it was sent: waiting for --max-concurrency, and for the client."""
        return self.sent_s - self.due_s

    @property
    def num_served_from_cache(self) -> int:
        """Cached tokens, none where the server does not tell."""
        return self.num_cached or 0


class Sample:
    """Numbers of a run: all of them up to a bound, beyond it an even sample."""

    def __init__(self, capacity: int, seed: int) -> None:
        self._capacity = capacity
        self._random = random.Random(seed)  # noqa: S311 - a sample, no secret
        self.values: array[float] = array("d")
        self.num_seen = 0

    def add(self, values: Iterable[float]) -> None:
        """Take more numbers in."""
        for value in values:
            self.num_seen += 1
            if len(self.values) < self._capacity:
                self.values.append(value)
            elif (place := self._random.randrange(self.num_seen)) < self._capacity:
                self.values[place] = value
