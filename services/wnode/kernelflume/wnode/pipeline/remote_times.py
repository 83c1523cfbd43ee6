"""What a layer takes on the attention nodes' side, as a function of the tokens that are read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

_BINS_AN_OCTAVE = 4
_MAX_BINS = 128
_SHARE = 0.2
"""Share of the distance that one observation moves its bin, once the bin is settled."""
_OUTLIER = 1.5
"""An observation this many times off its bin counts as no more."""
_SETTLED = 4
_HALF_LIFE = 4096
"""Observations after which what was seen at other loads counts half."""
_FITTED_EVERY = 8
"""Observations after which a line is fitted anew: it is asked for several times a step."""
_LEAST_SPREAD = 1.3
"""Tokens must differ by this factor to tell a slope from an offset."""


@dataclass(slots=True)
class _Bin:
    """Steps of nearly as many tokens."""

    tokens: float
    seconds: float
    num_seen: int = 1
    seen_last: int = 0


class _Line(NamedTuple):
    """What was fitted for loads near by, and when."""

    offset: float
    slope: float
    fitted_at: int


class RemoteTimes:
    """Remembers times at every load that was seen, and puts a line ``a + b * tokens`` through those near by.

    The present load alone never tells the offset from the slope, as tokens hardly change from step to step;
    what was seen at other loads does. Until such was seen all is taken for slope.
    """

    def __init__(self) -> None:
        self._bins: dict[int, _Bin] = {}
        self._lines: dict[int, _Line] = {}
        self._num_seen = 0

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Note a layer that took ``seconds`` beyond the weight node's own time."""
        self._num_seen += 1
        key = _key(num_tokens)
        found = self._bins.get(key)
        if found is None:
            if len(self._bins) == _MAX_BINS:
                del self._bins[min(self._bins, key=lambda name: self._bins[name].seen_last)]
            self._bins[key] = _Bin(num_tokens, seconds, seen_last=self._num_seen)
            self._lines.clear()
            return
        found.num_seen += 1
        found.seen_last = self._num_seen
        share = max(_SHARE, 1 / found.num_seen)
        if found.num_seen > _SETTLED:
            seconds = min(max(seconds, found.seconds / _OUTLIER), found.seconds * _OUTLIER)
        found.tokens += share * (num_tokens - found.tokens)
        found.seconds += share * (seconds - found.seconds)

    def at(self, num_tokens: float) -> float | None:
        """Predict the seconds at so many tokens, or None before anything was seen."""
        if not self._bins:
            return None
        key = _key(num_tokens)
        line = self._lines.get(key)
        if line is None or self._num_seen - line.fitted_at >= _FITTED_EVERY:
            line = self._lines[key] = _Line(*self._fit(num_tokens), self._num_seen)
        return line.offset + line.slope * num_tokens

    def _fit(self, num_tokens: float) -> tuple[float, float]:
        """Fit by least squares of relative errors, near bins and lately seen ones first."""
        bins = list(self._bins.values())
        weights = [self._weight(each, num_tokens) for each in bins]
        total = sum(weights)
        tokens = sum(w * each.tokens for w, each in zip(weights, bins, strict=True)) / total
        seconds = sum(w * each.seconds for w, each in zip(weights, bins, strict=True)) / total
        most, least = max(each.tokens for each in bins), min(each.tokens for each in bins)
        if most > _LEAST_SPREAD * least:
            spread = sum(w * (each.tokens - tokens) ** 2 for w, each in zip(weights, bins, strict=True))
            common = sum(
                w * (each.tokens - tokens) * (each.seconds - seconds)
                for w, each in zip(weights, bins, strict=True)
            )
            slope = max(0.0, common / spread) if spread > 0 else 0.0
            offset = seconds - slope * tokens
            if offset >= 0:
                return offset, slope
        return (0.0, seconds / tokens) if tokens > 0 else (seconds, 0.0)

    def _weight(self, each: _Bin, num_tokens: float) -> float:
        octaves = abs(math.log2((each.tokens + 1) / (num_tokens + 1)))
        age = math.exp2((each.seen_last - self._num_seen) / _HALF_LIFE)
        confidence = min(each.num_seen, _SETTLED) / _SETTLED
        return confidence * age * math.exp2(-2 * octaves) / max(each.seconds, 1e-7) ** 2 + 1e-12


def _key(num_tokens: float) -> int:
    return round(_BINS_AN_OCTAVE * math.log2(num_tokens + 1))
