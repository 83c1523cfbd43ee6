"""The pool in the figures that its size is decided on. Pure: leases, table and operation in, a value out."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from kernelflume.core.pipeline_profile import step_s
from kernelflume.core.routing import NodeState
from kernelflume.scaler.operation import Origin, Phase

if TYPE_CHECKING:
    from kernelflume.core.leases import LeaseRecord
    from kernelflume.core.profile import PerformanceProfile
    from kernelflume.scaler.observe import Observation


class PendingKind(StrEnum):
    """What the running operation has come to, as far as it matters here."""

    GROWING = "growing"
    """Nodes are launched, prewarmed or published."""
    READY = "ready"
    """Nodes are prewarmed, and wait to be published."""
    DRAINING = "draining"
    """Nodes drain, and can still be resumed."""
    SHRINKING = "shrinking"
    """Nodes are retired or released, or an operation is rolled back: past any change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUse:
    """One active attention node."""

    node_id: str
    capacity_tokens: int
    held_tokens: int
    """b_i: what the pages in use have room for, as a page belongs to one sequence."""
    num_tails: int
    """n_i: sequences that append here."""
    growth_tokens_per_s: float
    """n_i / T_step, summed over weight nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """All that a decision depends on, besides the policy, the profile and the memory."""

    now_s: float
    """The scaler's monotonic clock."""
    nodes: tuple[NodeUse, ...]
    """Active nodes."""
    num_requests: int
    """Running and waiting on all weight nodes."""
    waiting_tokens: int
    """Tokens accepted whose keys and values are not computed yet."""
    rows: float
    """Rows of a decode step, of the weight node with the most."""
    pending: PendingKind | None = None
    """The running operation."""
    is_pending_own: bool = False
    """True if the policy itself began it, so that it may publish or cancel it."""
    staleness_s: float = 0.0
    """Age that these figures may have, and the time until the next look."""


_PENDING_KINDS = {
    Phase.LAUNCHING: PendingKind.GROWING,
    Phase.PREWARMING: PendingKind.GROWING,
    Phase.READY: PendingKind.READY,
    Phase.PUBLISHING: PendingKind.GROWING,
    Phase.DRAINING: PendingKind.DRAINING,
    Phase.RETIRING: PendingKind.SHRINKING,
    Phase.RELEASING: PendingKind.SHRINKING,
    Phase.ROLLING_BACK: PendingKind.SHRINKING,
}


def pool_view(
    observation: Observation, *, profile: PerformanceProfile | None, token_bytes: int, staleness_s: float
) -> PoolView:
    """Gather what the leases of all nodes say of the active attention nodes.

    A node without a lease is shown as empty: the upkeep of the table decides whether it is lost.

    Args:
        observation: one look at everything.
        profile: predicts the step of a weight node that has tails but has not measured a step yet.
        token_bytes: bytes of one token's keys and values.
        staleness_s: see ``PoolView``.
    """
    active = observation.snapshot.in_state(NodeState.ACTIVE)
    held = {
        entry.node_id: observation.attention[entry.node_id].load.reserved_tokens
        for entry in active
        if observation.is_alive(entry)
    }
    most_held_bytes = max(held.values(), default=0) * token_bytes
    tails: dict[str, int] = defaultdict(int)
    growth: dict[str, float] = defaultdict(float)
    for record in observation.weights:
        a_step_s = _step_s(record, profile, most_held_bytes)
        for node_id, count in record.load.tails:
            tails[node_id] += count
            if a_step_s:
                growth[node_id] += count / a_step_s
    operation = observation.operation
    return PoolView(
        now_s=observation.now_s,
        nodes=tuple(
            NodeUse(
                node_id=entry.node_id,
                capacity_tokens=entry.capacity_tokens,
                held_tokens=held.get(entry.node_id, 0),
                num_tails=tails[entry.node_id],
                growth_tokens_per_s=growth[entry.node_id],
            )
            for entry in active
        ),
        num_requests=sum(
            record.load.num_requests_running + record.load.num_requests_waiting
            for record in observation.weights
        ),
        waiting_tokens=sum(record.load.waiting_tokens for record in observation.weights),
        rows=max((record.load.num_decode_rows for record in observation.weights), default=0),
        pending=_PENDING_KINDS[operation.phase] if operation is not None else None,
        is_pending_own=operation is not None and operation.origin is Origin.POLICY,
        staleness_s=staleness_s,
    )


def _step_s(record: LeaseRecord, profile: PerformanceProfile | None, most_held_bytes: int) -> float:
    """Return T_step of a weight node: measured, else predicted, else 0."""
    load = record.load
    if load.decode_step_s:
        return load.decode_step_s
    rows = sum(count for _, count in load.tails)
    if profile is None or not rows:
        return 0.0
    return step_s(profile, rows=rows, most_held_bytes=most_held_bytes)
