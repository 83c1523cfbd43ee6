"""The pipeline model of the paper (section 5.2): what a layer takes in one microbatch or in several. Pure.

One microbatch is computed on the weight node while others are attended to. The weight node serves them one
after another, and so does each attention node; a microbatch itself goes back and forth. Whichever of these
three takes longest sets the pace. Splitting is not free: a weight node that is bound by reading weights reads
them once for every microbatch, it pays its part of every exchange, and attention over half of the rows takes
more than half of the time.

Weight nodes choose by it from what they measure, and the scaling policy predicts with it from a profile
(``core.pipeline_profile``).
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
    """Projections, merge, feed-forward, with no attention node in it (the paper's T_p + T_f)."""
    attention_s: float
    """Attention on the slowest attention node (T_A)."""
    exchange_s: float = 0.0
    """What a round trip takes beyond both: signals and first bytes, less what the weight node computes while
    it would wait. The latter may be more: then it is negative."""
    weight_exchange_s: float = 0.0
    """What the exchange costs the weight node itself, also where it never waits: putting queries, signalling,
    looking for partials and reading them."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The number of microbatches, and what the model says of it."""

    num_microbatches: int
    layer_s: float
    """Predicted seconds a layer."""
    bound: str
    """What sets the pace: ``weight``, ``attention`` or ``round_trip``."""


def predict(times: StageTimes, num_microbatches: int) -> Choice:
    """Predict a layer of a step in ``num_microbatches``, whose stages take ``times`` each.

    With one microbatch nothing overlaps but what ``exchange_s`` knows of: it is a round trip.
    """
    round_trip_s = times.weight_s + times.attention_s + times.exchange_s
    if num_microbatches == 1:
        return Choice(1, round_trip_s, "round_trip")
    paces = {
        "round_trip": round_trip_s,
        "weight": num_microbatches * (times.weight_s + times.weight_exchange_s),
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


def step_s(times: StageTimes, num_microbatches: int, *, num_layers: int, overhead_s: float) -> float:
    """Predict a step: what is outside the layers, the layers, and once the filling of the pipe.

    Args:
        times: of one microbatch.
        num_microbatches: M.
        num_layers: layers of the model.
        overhead_s: all of the step that is in no layer.
    """
    layers_s = num_layers * predict(times, num_microbatches).layer_s
    return overhead_s + layers_s + fill_s(times, num_microbatches)


def fill_s(times: StageTimes, num_microbatches: int) -> float:
    """Return what a step takes beyond the pace of its layers, as its first and last overlap with less.

    Attention nodes that set the pace are idle before the first query and after the last answer: for once the
    weight node's stage. A weight node that sets it waits for the first answer and for the last one, as far as
    they take longer than it has to do for the other microbatches.
    """
    if num_microbatches == 1:
        return 0.0
    if times.attention_s >= times.weight_s:
        return times.weight_s
    return max(0.0, 2 * times.attention_s - (num_microbatches - 1) * times.weight_s)


def gain(projection_s: float, attention_s: float, post_attention_s: float) -> float:
    """Return G_pipe = (T_p + T_A + T_f) / max(T_p + T_f, T_A), the most a split gains: from 1 to 2."""
    return (projection_s + attention_s + post_attention_s) / max(projection_s + post_attention_s, attention_s)
