"""How many microbatches a decode step is best split into: the paper's pipeline model (section 5.2), a layer.

One microbatch is computed on the weight node while others are attended to. The weight node serves them one
after another, and so does each attention node; a microbatch itself goes back and forth. Whichever of these
three takes longest sets the pace. Splitting is not free: a weight node that is bound by reading weights reads
them once for every microbatch, and attention over half of the rows takes more than half of the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MICROBATCHES = (1, 2, 4)
"""Numbers to choose from."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds a layer of one microbatch, measured at its size."""

    weight_s: float
    """Projections, merge, feed-forward (the paper's T_p + T_f)."""
    attention_s: float
    """Attention on the slowest attention node (T_A)."""
    exchange_s: float
    """There and back, beyond both: signals, launches, first bytes."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The number of microbatches, and what the model says of it."""

    num_microbatches: int
    layer_s: float
    """Predicted seconds a layer."""
    bound: str
    """What sets the pace: ``weight``, ``attention`` or ``round_trip``."""


def predict(times: StageTimes, num_microbatches: int) -> Choice:
    """Predict a layer of a step in ``num_microbatches``, whose stages take ``times`` each."""
    paces = {
        "round_trip": times.weight_s + times.attention_s + times.exchange_s,
        "weight": num_microbatches * times.weight_s,
        "attention": num_microbatches * times.attention_s,
    }
    bound = max(paces, key=lambda name: paces[name])
    return Choice(num_microbatches, paces[bound], bound)


def choose(times: Mapping[int, StageTimes], *, least_gain: float = 0.02) -> Choice:
    """Choose among the numbers of microbatches that ``times`` are known of.

    Args:
        times: stage times of one microbatch, by the number of microbatches; 1 must be among them.
        least_gain: a larger number must be faster by this share than the best smaller one.
    """
    best = predict(times[1], 1)
    for number in sorted(times):
        candidate = predict(times[number], number)
        if candidate.layer_s < best.layer_s * (1 - least_gain):
            best = candidate
    return best
