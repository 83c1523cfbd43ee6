"""When the scaler's next look can come to another decision, while nothing but growth happens. Pure.

The live scaler looks four times a second. Between two changes of the batch or of the pool all that it sees
moves in one direction: tokens grow, room shrinks, and waits that have begun come to their end. So looks that
would find what the last one found need not be simulated; those that are stay on the scaler's grid of times.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kernelflume.scaler.pool_view import PendingKind
from kernelflume.scaler.sizing import CALM_PREWARMS, FOREVER_S

if TYPE_CHECKING:
    from kernelflume.scaler.scaling_policy import ScalingPolicy
    from kernelflume.scaler.sizing import PoolFigures, SizingState


def quiet_until_s(
    now_s: float,
    figures: PoolFigures,
    state: SizingState,
    policy: ScalingPolicy,
    *,
    pending: PendingKind | None,
    waiting_tokens: int,
) -> float:
    """Return a time up to which looks decide what the last one did, if nothing but growth happens.

    Args:
        now_s: of that look, which decided to do nothing.
        figures: that it decided on.
        state: that it left.
        policy: in force.
        pending: what the running operation had come to.
        waiting_tokens: that turns without room lack.
    """
    growth = figures.growth_tokens_per_s
    # A node is short when the room is used up within the time that the policy looks ahead. Growth only slows.
    ahead_s = policy.prewarm_margin * figures.prewarm_s
    calm_s = CALM_PREWARMS * ahead_s
    bounds = [now_s + figures.horizon_s - ahead_s] if growth > 0 and figures.horizon_s > ahead_s else []
    # What has been so for a while begins anew once it is not so any more.
    if growth > 0 and state.calm_since_s is not None:
        bounds.append(now_s + figures.horizon_s - calm_s)
    if growth > 0 and state.low_since_s is not None:
        left = figures.threshold_tokens * (1 - 1 / max(1, len(figures.nodes)))
        demand = figures.held_tokens + waiting_tokens
        bounds.append(now_s + (policy.scale_down_fraction * left - demand) / growth)
        bounds.append(now_s + (left - demand) / growth - calm_s)
    if pending is PendingKind.READY:
        missing = policy.gamma * figures.threshold_tokens - figures.held_tokens
        bounds += [now_s + missing / growth] if growth > 0 else []
        bounds += _end_s(state.calm_since_s, now_s, policy.scale_down_cooldown_s)
    if pending is None:
        bounds += _end_s(state.silent_since_s, now_s, policy.silence_s)
        if state.low_since_s is not None:
            low_since_s = max(state.low_since_s, state.changed_at_s)
            bounds += _end_s(low_since_s, now_s, policy.scale_down_cooldown_s)
    return min(bounds, default=FOREVER_S)


def _end_s(since_s: float | None, now_s: float, seconds: float) -> list[float]:
    """Return when a wait is over, if it has begun and that is yet to come."""
    if since_s is None or since_s + seconds <= now_s:
        return []
    return [since_s + seconds]


def tick_at_or_after(time_s: float, look_s: float) -> int:
    """Return the number of the first look at or after a time."""
    return math.ceil(time_s / look_s - 1e-9)


def tick_before(time_s: float, look_s: float) -> int:
    """Return the number of the last look at or before a time."""
    return math.floor(time_s / look_s + 1e-9)
