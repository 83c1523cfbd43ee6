"""The pipeline model with the figures of a performance profile: how long steps take, when to split. Pure.

Bytes count all layers of a model, times are in seconds, and steps are decode steps.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kernelflume.core import pipeline
from kernelflume.core.pipeline import MICROBATCHES, StageTimes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.core.profile import PerformanceProfile


def weight_stage_s(profile: PerformanceProfile, rows: float) -> float:
    """Return T_p + T_f of one layer."""
    return profile.projection_s.at(rows) + profile.post_attention_s.at(rows)


def attention_stage_s(profile: PerformanceProfile, rows: float, held_bytes: float) -> float:
    """Return T_A of one layer for the node that holds the most: exchange, and a scan of the layer's share."""
    return profile.exchange_s.at(rows) + held_bytes / (profile.num_layers * profile.attention_bytes_per_s)


def stage_times(
    profile: PerformanceProfile, *, rows: float, most_held_bytes: float, num_microbatches: int = 1
) -> StageTimes:
    """Return the stages of one of equal microbatches; the profile counts the exchange as part of T_A.

    Args:
        profile: measured times.
        rows: rows of the whole step.
        most_held_bytes: bytes held by the attention node that holds the most.
        num_microbatches: M.
    """
    part = rows / num_microbatches
    return StageTimes(
        weight_s=weight_stage_s(profile, part),
        attention_s=attention_stage_s(profile, part, most_held_bytes / num_microbatches),
    )


def step_s(
    profile: PerformanceProfile, *, rows: float, most_held_bytes: float, num_microbatches: int = 1
) -> float:
    """Predict T_step; arguments as of ``stage_times``."""
    return pipeline.step_s(
        stage_times(profile, rows=rows, most_held_bytes=most_held_bytes, num_microbatches=num_microbatches),
        num_microbatches,
        num_layers=profile.num_layers,
        overhead_s=profile.step_overhead_s.at(rows),
    )


def choose_num_microbatches(
    profile: PerformanceProfile, *, rows: int, most_held_bytes: float, allowed: Sequence[int] = MICROBATCHES
) -> int:
    """Return the M with the shortest predicted step, the smallest of equals; never more than rows."""
    possible = [count for count in sorted(allowed) if count <= max(1, rows)]
    return min(
        possible,
        key=lambda count: step_s(profile, rows=rows, most_held_bytes=most_held_bytes, num_microbatches=count),
    )


def pipelining_threshold_bytes(
    profile: PerformanceProfile, *, rows: int, allowed: Sequence[int] = MICROBATCHES
) -> float:
    """Return M_thresh: the held bytes of the fullest node from which more than one microbatch pays.

    Below it attention is so short that a split costs the weight node more than overlap gains. Infinite where
    a split never pays.
    """
    if rows < 2:
        return math.inf

    def pays(held_bytes: float) -> bool:
        return choose_num_microbatches(profile, rows=rows, most_held_bytes=held_bytes, allowed=allowed) > 1

    # Overlap gains at most the shorter stage: nothing changes once attention is far the longer one.
    low, high = 0.0, 1.0
    limit = 1e3 * weight_stage_s(profile, rows) * profile.num_layers * profile.attention_bytes_per_s
    while not pays(high):
        low, high = high, 2 * high
        if high > limit:
            return math.inf
    if pays(0.0):
        return 0.0
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high
