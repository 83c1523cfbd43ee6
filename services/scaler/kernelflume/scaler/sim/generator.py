"""Sessions drawn from the published statistics of the paper's trace, which itself is not public here. Pure.

Published: calls a session p50 30, p90 57; first context p50 12,278; last context p50 80,488, p90 130,165;
output a session p50 15,666, p90 29,968; delay between turns p50 5.2 s, p99 81.4 s. Logarithmic normal
distributions with these medians and the spreads below come close to the published p90 and p99. What is not
published is assumed: the quantities are independent but that the last context holds the first one and all
output, and a turn's share of output and of growth is exponential.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from kernelflume.scaler.sim.sessions import Session, Turn

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

    from kernelflume.scaler.sim.section import Dynamics
    from kernelflume.scaler.sim.workload_settings import GeneratorSource

_TURNS = (30.0, 0.50)
"""Median and standard deviation of the logarithm."""
_FIRST_CONTEXT = (12_278.0, 0.374)
"""The spread is assumed to be that of the last context."""
_LAST_CONTEXT = (80_488.0, 0.374)
_OUTPUT = (15_666.0, 0.506)
_THINK = (5.2, math.log(81.4 / 5.2) / NormalDist().inv_cdf(0.99))
CENTRAL_SHARE: dict[str, float] = {"low": 0.2, "medium": 0.6, "high": 1.0}
"""Middle part of the distribution of lengths that a slice draws from. The paper says of its slices only that
Low stays near the median and High has the heaviest spread: these shares are an assumption."""


def band(dynamics: Dynamics) -> tuple[float, float]:
    """Return the quantiles of the session lengths between which a slice lies."""
    share = CENTRAL_SHARE[dynamics]
    return 0.5 - share / 2, 0.5 + share / 2


def generate(source: GeneratorSource, random: Generator) -> tuple[Session, ...]:
    """Draw the sessions."""
    return tuple(_session(number, source, random) for number in range(source.num_sessions))


def _session(number: int, source: GeneratorSource, random: Generator) -> Session:
    low, high = band(source.dynamics)
    quantile = min(max(float(random.uniform(low, high)), 1e-6), 1 - 1e-6)
    last = _LAST_CONTEXT[0] * math.exp(_LAST_CONTEXT[1] * NormalDist().inv_cdf(quantile))
    last = min(last, source.maximum_context_tokens) * source.context_scale
    num_turns = max(1, round(_draw(_TURNS, random)))
    first = max(1.0, min(_draw(_FIRST_CONTEXT, random) * source.context_scale, last / 2))
    output = max(float(num_turns), min(_draw(_OUTPUT, random) * source.context_scale, last - first))
    outputs = _shares(output, num_turns, random)
    # What tools and people add: before each turn but the first.
    additions = [0, *_shares(max(0.0, last - first - output), num_turns - 1, random)]
    turns: list[Turn] = []
    context = round(first)
    for index, (added, decoded) in enumerate(zip(additions, outputs, strict=True)):
        context += added
        think_s = _draw(_THINK, random) if index else 0.0
        turns.append(Turn(context, max(1, decoded), think_s))
        context += max(1, decoded)
    return Session(number, tuple(turns))


def _draw(law: tuple[float, float], random: Generator) -> float:
    return float(law[0] * math.exp(law[1] * random.standard_normal()))


def _shares(total: float, count: int, random: Generator) -> list[int]:
    """Cut a total into random whole parts that add up to it."""
    if count == 0:
        return []
    weights: NDArray[np.float64] = random.standard_exponential(count)
    ends = np.rint(np.cumsum(weights) / weights.sum() * round(total)).astype(int)
    return [int(part) for part in np.diff(ends, prepend=0)]
