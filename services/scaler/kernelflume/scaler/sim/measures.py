"""What is measured: step times in a histogram, figures over time, billed nodes. All of bounded size."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

_BINS_PER_E = 400
"""Bins for each factor of e: a quantile is off by at most an eighth of a percent."""
_LEAST_S = 1e-6
_NUM_BINS = 20 * _BINS_PER_E
"""Up to e to the power of 20 times the least: 485 seconds."""
_EDGES = np.exp(np.arange(_NUM_BINS + 1) / _BINS_PER_E) * _LEAST_S
"""Where each bin begins."""
_WIDTHS = np.diff(_EDGES)


class Histogram:
    """Weighted seconds on a logarithmic scale."""

    def __init__(self) -> None:
        """Begin empty."""
        self._weights = np.zeros(_NUM_BINS)
        self._total = 0.0
        self._sum_s = 0.0

    @property
    def total(self) -> float:
        """Weight of all."""
        return self._total

    @property
    def mean_s(self) -> float:
        """Weighted mean; 0 of nothing."""
        return self._sum_s / self._total if self._total else 0.0

    def add(self, seconds: float, weight: float = 1.0) -> None:
        """Add one value."""
        self._weights[_bin(seconds)] += weight
        self._total += weight
        self._sum_s += weight * seconds

    def add_line(self, count: int, first_s: float, slope_s: float, weight: float = 1.0) -> None:
        """Add ``count`` values, each longer than the one before by ``slope_s``."""
        last_s = first_s + slope_s * (count - 1)
        low, high = sorted((_bin(first_s), _bin(last_s)))
        self._total += weight * count
        self._sum_s += weight * count * (first_s + last_s) / 2
        if low == high:
            self._weights[low] += weight * count
            return
        least, most = min(first_s, last_s), max(first_s, last_s)
        span_s, weight = most - least, weight * count
        self._weights[low] += weight * ((_EDGES[low + 1] - least) / span_s)
        if high > low + 1:
            self._weights[low + 1 : high] += weight * (_WIDTHS[low + 1 : high] / span_s)
        self._weights[high] += weight * ((most - _EDGES[high]) / span_s)

    def quantile(self, share: float) -> float:
        """Return the seconds that this share of the weight does not exceed; 0 of nothing."""
        if not self._total:
            return 0.0
        sums = np.cumsum(self._weights)
        index = int(np.searchsorted(sums, share * sums[-1]))
        return float(_LEAST_S * math.exp((index + 0.5) / _BINS_PER_E))


def _bin(seconds: float) -> int:
    return min(_NUM_BINS - 1, max(0, int(math.log(max(seconds, _LEAST_S) / _LEAST_S) * _BINS_PER_E)))


class StepMeter:
    """Steps and tokens of all engines, and how many steps were within the objective."""

    def __init__(self, slo_s: float) -> None:
        """Count against an objective of ``slo_s`` seconds a token."""
        self._slo_s = slo_s
        self.steps = Histogram()
        self.num_steps = 0
        self.num_tokens = 0
        self.num_within = 0.0

    def add(self, count: int, first_s: float, slope_s: float, *, rows: int) -> None:
        """Note ``count`` steps of ``rows`` rows whose seconds lie on a line."""
        if not count:
            return
        self.steps.add_line(count, first_s, slope_s)
        self.num_steps += count
        self.num_tokens += count * rows
        last_s = first_s + slope_s * (count - 1)
        if max(first_s, last_s) <= self._slo_s:
            self.num_within += count
        elif min(first_s, last_s) <= self._slo_s:
            self.num_within += count * abs(self._slo_s - min(first_s, last_s)) / abs(last_s - first_s)


class Sample(NamedTuple):
    """The system at one moment. One is made at every change, of which there are very many."""

    time_s: float
    held_tokens: int
    capacity_tokens: int
    num_nodes: int
    """Billed nodes or ranks, the weight node not counted where there are attention nodes."""
    num_running: int
    num_waiting: int
    step_s: float
    """The longest of the engines' present steps."""


@dataclass(frozen=True, slots=True)
class Change:
    """A scale event."""

    time_s: float
    num_nodes: int
    """After it."""
    reason: str


class Timeline:
    """Samples, thinned as they become many: of each stretch of time the one that holds the most."""

    def __init__(self, most: int = 2048) -> None:
        """Keep at most so many samples, and as many changes."""
        self._most = most
        self._stretch_s = 0.0
        self._held_token_s = 0.0
        self._latest: Sample | None = None
        self.samples: list[Sample] = []
        self.changes: list[Change] = []
        self.num_changes = 0

    def add(self, sample: Sample) -> None:
        """Note a sample; times do not fall."""
        if self._latest is not None:
            both = self._latest.held_tokens + sample.held_tokens
            self._held_token_s += (sample.time_s - self._latest.time_s) * both / 2
        self._latest = sample
        if self.samples and self._index(self.samples[-1]) == self._index(sample) and self._stretch_s:
            if sample.held_tokens >= self.samples[-1].held_tokens:
                self.samples[-1] = sample
            return
        self.samples.append(sample)
        if len(self.samples) > self._most:
            self._thin()

    @property
    def mean_held_tokens(self) -> float:
        """Mean over time of what was held, of all samples, those that were thinned out too."""
        span_s = self._latest.time_s - self.samples[0].time_s if self._latest is not None else 0.0
        return self._held_token_s / span_s if span_s else 0.0

    def change(self, change: Change) -> None:
        """Note a scale event; beyond the bound they are only counted."""
        self.num_changes += 1
        if len(self.changes) < self._most:
            self.changes.append(change)

    def _index(self, sample: Sample) -> int:
        return int(sample.time_s / self._stretch_s) if self._stretch_s else 0

    def _thin(self) -> None:
        span_s = self.samples[-1].time_s
        self._stretch_s = max(2 * self._stretch_s, 2 * span_s / self._most)
        kept: dict[int, Sample] = {}
        for sample in self.samples:
            index = self._index(sample)
            if index not in kept or sample.held_tokens >= kept[index].held_tokens:
                kept[index] = sample
        self.samples = list(kept.values())


class Billing:
    """Which nodes are paid for, and since when."""

    def __init__(self) -> None:
        """Begin with none."""
        self._open: dict[int, tuple[str, int, float]] = {}
        self._number = 0
        self._gpu_seconds: dict[str, float] = defaultdict(float)
        self.most_gpus = 0

    @property
    def num_gpus(self) -> int:
        """GPUs that are paid for now."""
        return sum(num_gpus for _, num_gpus, _ in self._open.values())

    def begin(self, hardware: str, num_gpus: int, now_s: float) -> int:
        """Pay for a node from now on; return the number that ends it."""
        self._number += 1
        self._open[self._number] = (hardware, num_gpus, now_s)
        self.most_gpus = max(self.most_gpus, self.num_gpus)
        return self._number

    def end(self, number: int, now_s: float) -> None:
        """Pay for a node no longer."""
        hardware, num_gpus, begun_s = self._open.pop(number)
        self._gpu_seconds[hardware] += num_gpus * (now_s - begun_s)

    def end_all(self, now_s: float) -> None:
        """Pay for nothing any longer."""
        for number in list(self._open):
            self.end(number, now_s)

    def gpu_hours(self) -> dict[str, float]:
        """Return GPU-hours by hardware, of nodes that have ended."""
        return {hardware: seconds / 3600 for hardware, seconds in sorted(self._gpu_seconds.items())}
