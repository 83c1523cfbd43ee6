"""How many attention nodes there should be. Pure: a view and a memory in, an action with its reason out.

Paper section 4.2 and Algorithm 6: N_A from the footprint, prewarm when the fill horizon is shorter than a
prewarm, publish at the watermark. What goes beyond the paper is listed in docs/adr/0007-scaling-policy.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from kernelflume.scaler.cost import node_budget, nodes_for
from kernelflume.scaler.pool_view import PendingKind

if TYPE_CHECKING:
    from kernelflume.core.profile import PerformanceProfile
    from kernelflume.scaler.pool_view import PoolView
    from kernelflume.scaler.scaling_policy import ScalingPolicy

FOREVER_S = 1e9
"""Stands for a time without end, in place of infinity, which JSON does not have."""
CALM_PREWARMS = 2.0
"""A smaller pool must have this many times the horizon at which it would grow: else it would grow again."""
_PREWARM_MEMORY = 0.5
"""Weight of the newest prewarm in the running estimate, when it was shorter; a longer one counts at once."""


class SizingAction(StrEnum):
    """What is to be done."""

    NONE = "none"
    SCALE = "scale"
    PUBLISH = "publish"
    CANCEL = "cancel"


class SizingReason(StrEnum):
    """Why."""

    STEADY = "steady"
    """Nothing is to be done."""
    MINIMUM = "minimum"
    """Fewer nodes are active than must be."""
    MAXIMUM = "maximum"
    """More nodes are active than may be, or more are needed than may be."""
    FOOTPRINT = "footprint"
    """The tokens accepted so far need more nodes (N_A)."""
    HORIZON = "horizon"
    """At the present growth the pool is full before a node could be there (tau_fill)."""
    WATERMARK = "watermark"
    """The prewarmed nodes are ready, and the pool has reached gamma."""
    DEMAND_GONE = "demand_gone"
    """Prewarmed nodes are not needed any more."""
    OVERTAKEN = "overtaken"
    """The nodes that drain are needed again."""
    LOW_USE = "low_use"
    """One node less would do, and has for the whole cooldown."""
    SILENCE = "silence"
    """No request and no token for so long that the minimum will do."""
    PENDING = "pending"
    """An operation runs: it is waited for."""
    COOLDOWN = "cooldown"
    """One node less would do, but not for long enough yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingState:
    """What is remembered from one look to the next."""

    prewarm_s: float = 0.0
    """Running estimate of T_prewarm from the operations so far; 0 before the first."""
    changed_at_s: float = -FOREVER_S
    """When an operation last ended."""
    low_since_s: float | None = None
    """Since when one node less would have done."""
    silent_since_s: float | None = None
    """Since when there has been neither request nor token."""
    calm_since_s: float | None = None
    """Since when prewarmed nodes have not been needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFigures:
    """What follows for one active node."""

    node_id: str
    threshold_tokens: int
    """C_thresh in tokens."""
    fill_s: float
    """tau_fill T_step; FOREVER_S without growth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFigures:
    """What follows from a view: the inputs of a decision, logged with it."""

    nodes: tuple[NodeFigures, ...]
    threshold_tokens: int
    """Of all active nodes."""
    held_tokens: int
    room_tokens: int
    """Below the thresholds, what waits already taken off."""
    growth_tokens_per_s: float
    horizon_s: float
    """Until the room is used up."""
    prewarm_s: float
    """T_prewarm, staleness included."""
    slo_unreachable: bool

    @property
    def fill(self) -> float:
        """Held share of the threshold."""
        return self.held_tokens / self.threshold_tokens if self.threshold_tokens else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """A decision: what, how many, why, and on what."""

    action: SizingAction
    reason: SizingReason
    target: int
    """Active nodes wanted; the present number unless the action is to scale."""
    at_once: bool
    """Publish as soon as ready, without waiting for the watermark."""
    figures: PoolFigures


def size(
    view: PoolView,
    state: SizingState,
    policy: ScalingPolicy,
    *,
    profile: PerformanceProfile | None,
    token_bytes: int,
) -> tuple[Sizing, SizingState]:
    """Decide on the size of the pool.

    Args:
        view: the pool now.
        state: what ``size`` returned before; a default one at first.
        policy: the operator's settings.
        profile: measured times of the model, if there are any.
        token_bytes: bytes of one token's keys and values in all layers.
    """
    figures = measure(view, state, policy, profile=profile, token_bytes=token_bytes)
    needed, need = _needed(view, figures, policy)
    state = _remember(view, figures, needed, state, policy)
    num_active = len(view.nodes)

    def decided(
        action: SizingAction, reason: SizingReason, target: int = num_active, *, at_once: bool = False
    ) -> tuple[Sizing, SizingState]:
        return Sizing(action=action, reason=reason, target=target, at_once=at_once, figures=figures), state

    if view.pending is not None:
        action, reason = _while_pending(view, figures, state, policy, needed > num_active)
        return decided(action, reason)
    if num_active < policy.minimum_nodes:
        return decided(SizingAction.SCALE, SizingReason.MINIMUM, policy.minimum_nodes, at_once=True)
    if num_active > policy.most_nodes:
        return decided(SizingAction.SCALE, SizingReason.MAXIMUM, policy.most_nodes)
    if needed > num_active:
        target = min(needed, policy.most_nodes, num_active + policy.maximum_nodes_at_once)
        if target == num_active:
            return decided(SizingAction.NONE, SizingReason.MAXIMUM)
        return decided(SizingAction.SCALE, need, target, at_once=need is SizingReason.FOOTPRINT)
    if num_active == policy.minimum_nodes:
        return decided(SizingAction.NONE, SizingReason.STEADY)
    if _lasted(state.silent_since_s, view.now_s, policy.silence_s):
        return decided(SizingAction.SCALE, SizingReason.SILENCE, policy.minimum_nodes)
    if state.low_since_s is None:
        return decided(SizingAction.NONE, SizingReason.STEADY)
    low_since_s = max(state.low_since_s, state.changed_at_s)
    if _lasted(low_since_s, view.now_s, policy.scale_down_cooldown_s):
        return decided(SizingAction.SCALE, SizingReason.LOW_USE, num_active - 1)
    return decided(SizingAction.NONE, SizingReason.COOLDOWN)


def after_change(state: SizingState, *, now_s: float, prewarm_s: float | None = None) -> SizingState:
    """Remember that an operation ended, and how long its prewarm took if it had one."""
    state = replace(state, changed_at_s=now_s, low_since_s=None, calm_since_s=None)
    if prewarm_s is None:
        return state
    longer = max(prewarm_s, state.prewarm_s + _PREWARM_MEMORY * (prewarm_s - state.prewarm_s))
    return replace(state, prewarm_s=longer)


def measure(
    view: PoolView,
    state: SizingState,
    policy: ScalingPolicy,
    *,
    profile: PerformanceProfile | None,
    token_bytes: int,
) -> PoolFigures:
    """Work out thresholds, room and horizons."""
    # Nodes of one size have one budget.
    by_capacity = {
        capacity: node_budget(
            capacity * token_bytes,
            beta_memory=policy.beta_memory,
            beta_slo=policy.beta_slo,
            tpot_slo_s=policy.tpot_slo_s,
            profile=profile,
            rows=max(1.0, view.rows),
            microbatches=policy.microbatches,
        )
        for capacity in {node.capacity_tokens for node in view.nodes}
    }
    budgets = [by_capacity[node.capacity_tokens] for node in view.nodes]
    thresholds = [int(budget.threshold_bytes / token_bytes) for budget in budgets]
    room = sum(
        max(0, threshold - node.held_tokens) for threshold, node in zip(thresholds, view.nodes, strict=True)
    )
    room = max(0, room - view.waiting_tokens)
    growth = sum(node.growth_tokens_per_s for node in view.nodes)
    known_prewarm_s = state.prewarm_s or (profile.prewarm_s if profile is not None else 0.0)
    return PoolFigures(
        nodes=tuple(
            NodeFigures(
                node_id=node.node_id,
                threshold_tokens=threshold,
                fill_s=_horizon_s(threshold - node.held_tokens, node.growth_tokens_per_s),
            )
            for threshold, node in zip(thresholds, view.nodes, strict=True)
        ),
        threshold_tokens=sum(thresholds),
        held_tokens=sum(node.held_tokens for node in view.nodes),
        room_tokens=room,
        growth_tokens_per_s=growth,
        horizon_s=_horizon_s(room, growth),
        prewarm_s=known_prewarm_s + view.staleness_s,
        slo_unreachable=any(budget.slo_unreachable for budget in budgets),
    )


def _needed(view: PoolView, figures: PoolFigures, policy: ScalingPolicy) -> tuple[int, SizingReason]:
    """Return how many nodes the accepted tokens and the growth until the next node need."""
    num_active = len(view.nodes)
    if num_active == 0:
        return policy.minimum_nodes, SizingReason.MINIMUM
    a_node = max(1.0, figures.threshold_tokens / num_active)
    demand = figures.held_tokens + view.waiting_tokens
    if view.waiting_tokens and figures.room_tokens == 0:
        footprint = nodes_for(demand, a_node)
        if footprint > num_active:
            return footprint, SizingReason.FOOTPRINT
    ahead_s = policy.prewarm_margin * figures.prewarm_s
    short = figures.growth_tokens_per_s * ahead_s - figures.room_tokens
    if short > 0 or (figures.room_tokens == 0 and figures.growth_tokens_per_s > 0):
        return num_active + max(1, math.ceil(short / a_node)), SizingReason.HORIZON
    return num_active, SizingReason.STEADY


def _while_pending(
    view: PoolView, figures: PoolFigures, state: SizingState, policy: ScalingPolicy, is_short: bool
) -> tuple[SizingAction, SizingReason]:
    if not view.is_pending_own:
        return SizingAction.NONE, SizingReason.PENDING
    if view.pending is PendingKind.DRAINING and is_short and len(view.nodes) < policy.most_nodes:
        return SizingAction.CANCEL, SizingReason.OVERTAKEN
    if view.pending is PendingKind.READY:
        if figures.fill >= policy.gamma or figures.room_tokens == 0:
            return SizingAction.PUBLISH, SizingReason.WATERMARK
        if _lasted(state.calm_since_s, view.now_s, policy.scale_down_cooldown_s):
            return SizingAction.CANCEL, SizingReason.DEMAND_GONE
    return SizingAction.NONE, SizingReason.PENDING


def _remember(
    view: PoolView, figures: PoolFigures, needed: int, state: SizingState, policy: ScalingPolicy
) -> SizingState:
    num_active = len(view.nodes)
    silent = view.num_requests == 0 and figures.held_tokens == 0
    calm_s = CALM_PREWARMS * policy.prewarm_margin * figures.prewarm_s
    calm = needed <= num_active and figures.horizon_s > calm_s
    low = calm and num_active > 1 and _would_do(view, figures, policy, calm_s)

    def since(holds: bool, before: float | None) -> float | None:
        return (view.now_s if before is None else before) if holds else None

    return replace(
        state,
        silent_since_s=since(silent, state.silent_since_s),
        calm_since_s=since(calm, state.calm_since_s),
        low_since_s=since(low, state.low_since_s),
    )


def _would_do(view: PoolView, figures: PoolFigures, policy: ScalingPolicy, calm_s: float) -> bool:
    """Tell whether one node less would do: the N/(N-1) check."""
    left = figures.threshold_tokens * (len(view.nodes) - 1) / len(view.nodes)
    demand = figures.held_tokens + view.waiting_tokens
    if demand > policy.scale_down_fraction * left:
        return False
    return _horizon_s(left - demand, figures.growth_tokens_per_s) > calm_s


def _horizon_s(room_tokens: float, growth_tokens_per_s: float) -> float:
    if growth_tokens_per_s <= 0:
        return FOREVER_S
    return min(FOREVER_S, max(0.0, room_tokens) / growth_tokens_per_s)


def _lasted(since_s: float | None, now_s: float, seconds: float) -> bool:
    return since_s is not None and now_s - since_s >= seconds
