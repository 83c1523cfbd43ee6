"""What to do about the attention pool. Pure: an observation and a state in, a decision and a state out.

Keep the number of nodes that is wanted, take lost nodes out, put strays right. What number is wanted is a
person's to say, or follows from growth and occupancy (``scaler.sizing``).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from kernelflume.core.routing import NodeState
from kernelflume.scaler.operation import Result
from kernelflume.scaler.pool_view import pool_view
from kernelflume.scaler.sizing import (
    Sizing,
    SizingAction,
    SizingReason,
    SizingState,
    after_change,
    size,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kernelflume.core.leases import LeaseRecord
    from kernelflume.core.profile import PerformanceProfile
    from kernelflume.core.routing import AttentionNodeEntry
    from kernelflume.scaler.observe import Observation
    from kernelflume.scaler.operation import Operation
    from kernelflume.scaler.pool_view import PoolView
    from kernelflume.scaler.scaling_policy import ScalingPolicy


_THRESHOLD_STEP = 0.05
"""Share of the capacity by which C_thresh must move before weight nodes are told."""


class RemovalReason(StrEnum):
    """Why a node is taken out of the table without a drain."""

    PROCESS_ENDED = "process_ended"
    LEASE_LOST = "lease_lost"
    RESTARTED = "restarted"
    ABANDONED = "abandoned"
    """Left by an operation that is not running any more."""


class ScaleReason(StrEnum):
    """Why the policy itself starts an operation."""

    TARGET = "target"
    """The pool has another number of active nodes than was asked for: one was lost, or it starts."""
    ADOPT = "adopt"
    """Nodes that others started have joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """Bounds and delays of the policy."""

    scaling: ScalingPolicy
    """What the operator sets; replaced while the scaler runs."""
    profile: PerformanceProfile | None = None
    """Measured times of the model."""
    token_bytes: int = 1
    """Bytes of one token's keys and values in all layers."""
    staleness_s: float = 0.0
    """Age that a node's figures may have, and the time between two looks."""
    lost_grace_s: float
    """A node whose lease is gone counts as lost after this long."""
    retry_min_s: float
    retry_max_s: float
    """Wait after a failed operation of the policy's own: doubling from one to the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyState:
    """What the policy remembers from one look to the next."""

    target: int | None = None
    """Active nodes wanted; None leaves the pool as it is and adopts what joins."""
    manual_since_s: float | None = None
    """Since when a person's target holds and the size is not the policy's to change; None while it is."""
    sizing: SizingState = field(default_factory=SizingState)
    missing_since_s: Mapping[str, float] = field(default_factory=dict)
    """Names of nodes without a lease -> when that was first seen."""
    num_failures: int = 0
    """Failed operations of the policy's own in a row."""
    retry_at_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Take this start of a node out of the table at once."""

    node_id: str
    incarnation: str
    state: NodeState
    """What it was decided on; nothing is removed once the state has changed."""
    reason: RemovalReason
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """One sizing decision with all that led to it, so that it can be made again from its log."""

    view: PoolView
    state: SizingState
    """Before the decision."""
    sizing: Sizing


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do now; all empty for nothing."""

    removals: tuple[Removal, ...] = ()
    resumed: tuple[str, ...] = ()
    """Draining nodes that no operation drains."""
    forgotten_weight_nodes: tuple[str, ...] = ()
    """Names of dead weight nodes whose routes are dropped."""
    scale_to: int | None = None
    scale_reason: ScaleReason | SizingReason | None = None
    is_held: bool = False
    """The nodes that are added wait, once prewarmed, until they are to be published."""
    publishes: bool = False
    """Publish the nodes that the running operation has prewarmed."""
    cancels: bool = False
    """Undo the running operation, which is the policy's own."""
    thresholds: Mapping[str, int] = field(default_factory=dict)
    """Active nodes whose C_thresh has changed -> tokens."""
    sized: Sized | None = None
    """How the size was decided on; None while it is a person's."""


def decide(
    observation: Observation, state: PolicyState, settings: PolicySettings
) -> tuple[Decision, PolicyState]:
    """Decide on the next step."""
    missing = _missing_since(observation, state)
    lost = frozenset(
        name for name, since_s in missing.items() if observation.now_s - since_s > settings.lost_grace_s
    )
    removals = tuple(
        removal
        for entry in observation.snapshot.nodes
        if (removal := _removal(entry, observation, entry.name in lost)) is not None
    )
    state = replace(state, missing_since_s=missing)
    gone = {removal.node_id for removal in removals}
    decision = Decision(
        removals=removals,
        resumed=tuple(
            entry.node_id
            for entry in observation.snapshot.in_state(NodeState.DRAINING)
            if entry.node_id not in gone and not is_owned(entry, observation.operation)
        ),
        forgotten_weight_nodes=tuple(sorted(observation.routed_weight_nodes & lost)),
    )
    sizing: Sizing | None = None
    if is_automatic(state, settings, now_s=observation.now_s):
        decision, state = _sized(decision, observation, state, settings)
        sizing = decision.sized.sizing if decision.sized is not None else None
    if removals or decision.resumed:
        return decision, state  # first the table, then look again
    if observation.operation is not None:
        if sizing is not None:
            decision = replace(
                decision,
                publishes=sizing.action is SizingAction.PUBLISH,
                cancels=sizing.action is SizingAction.CANCEL,
            )
        return decision, state
    if observation.now_s < state.retry_at_s:
        return decision, state
    if sizing is not None and sizing.action is SizingAction.SCALE:
        # At the start, and after losses, as many are wanted as were before, if those are more.
        before = state.target or 0 if sizing.reason is SizingReason.MINIMUM else 0
        state = replace(state, target=max(sizing.target, before))
    scale_to, reason = _wanted(observation, state, settings)
    if scale_to == observation.num_in_state(NodeState.ACTIVE):
        return decision, state
    if sizing is not None and sizing.action is SizingAction.SCALE:
        return replace(
            decision, scale_to=scale_to, scale_reason=sizing.reason, is_held=not sizing.at_once
        ), state
    return replace(decision, scale_to=scale_to, scale_reason=reason), state


def is_automatic(state: PolicyState, settings: PolicySettings, *, now_s: float) -> bool:
    """Return whether the size is the policy's to choose: set so, and no person's target holds."""
    if not settings.scaling.automatic:
        return False
    if state.manual_since_s is None:
        return True
    hold_s = settings.scaling.manual_hold_s
    return hold_s > 0 and now_s - state.manual_since_s >= hold_s


def _sized(
    decision: Decision, observation: Observation, state: PolicyState, settings: PolicySettings
) -> tuple[Decision, PolicyState]:
    view = pool_view(
        observation,
        profile=settings.profile,
        token_bytes=settings.token_bytes,
        staleness_s=settings.staleness_s,
    )
    sizing, following = size(
        view, state.sizing, settings.scaling, profile=settings.profile, token_bytes=settings.token_bytes
    )
    sized = Sized(view=view, state=state.sizing, sizing=sizing)
    thresholds = {
        node.node_id: node.threshold_tokens
        for node in sizing.figures.nodes
        if _has_moved(observation.snapshot.get(node.node_id), node.threshold_tokens)
    }
    decision = replace(decision, sized=sized, thresholds=thresholds)
    return decision, replace(state, sizing=following, manual_since_s=None)


def after_operation(
    state: PolicyState, settings: PolicySettings, *, succeeded: bool, now_s: float
) -> PolicyState:
    """Remember how an operation of the policy's own ended: wait ever longer after failures in a row."""
    if succeeded:
        return replace(state, num_failures=0, retry_at_s=0.0)
    delay_s = min(settings.retry_min_s * 2.0**state.num_failures, settings.retry_max_s)
    return replace(state, num_failures=min(state.num_failures + 1, 30), retry_at_s=now_s + delay_s)


def after_own(
    state: PolicyState, settings: PolicySettings, operation: Operation, *, overtaken: bool, now_s: float
) -> PolicyState:
    """Remember how an operation of the policy's own ended.

    Args:
        state: before.
        settings: in force.
        operation: the one that ended.
        overtaken: it gave up because the pool changed under it.
        now_s: the present time.
    """
    grew = operation.result is Result.SUCCEEDED and operation.target > operation.initial
    # The first nodes of all wait for a weight node that is still loading its model: a profile knows better
    # what a node takes that is added to others. Without one it is all that is known.
    is_profiled = settings.profile is not None and settings.profile.prewarm_s > 0
    teaches = grew and (operation.initial > 0 or not is_profiled)
    sizing = after_change(state.sizing, now_s=now_s, prewarm_s=operation.prewarm_s if teaches else None)
    is_given_up = is_automatic(state, settings, now_s=now_s) or operation.result is Result.CANCELLED
    if operation.rolled_back and not overtaken and is_given_up:
        # The next look decides anew; what a person stopped is not tried again.
        state = replace(state, target=operation.initial)
    return after_operation(
        replace(state, sizing=sizing),
        settings,
        succeeded=operation.result is not Result.FAILED,
        now_s=now_s,
    )


def choose_victims(
    entries: Sequence[AttentionNodeEntry], leases: Mapping[str, LeaseRecord], count: int
) -> tuple[str, ...]:
    """Choose which active nodes to drain: fewest tokens held first, then the newest in the table.

    Few tokens mean few sequences to wait for. At least one node is always left.

    Args:
        entries: the active nodes in table order, which is the order in which they joined.
        leases: living attention nodes by node id; one without a lease counts as empty.
        count: how many to choose.
    """

    used = {node_id: record.load.used_tokens for node_id, record in leases.items()}
    return emptiest_first([entry.node_id for entry in entries], used)[: max(0, min(count, len(entries) - 1))]


def emptiest_first(node_ids: Sequence[str], used_tokens: Mapping[str, int]) -> tuple[str, ...]:
    """Return nodes in the order in which they are drained: fewest tokens first, then the newest.

    Args:
        node_ids: in the order in which they joined.
        used_tokens: by node id; one that is not in it counts as empty.
    """
    newest_first = list(reversed(node_ids))
    return tuple(sorted(newest_first, key=lambda node_id: used_tokens.get(node_id, 0)))


def _has_moved(entry: AttentionNodeEntry, threshold_tokens: int) -> bool:
    """Tell whether a threshold is worth a new epoch."""
    return abs(entry.threshold_tokens - threshold_tokens) > _THRESHOLD_STEP * entry.capacity_tokens


def _wanted(
    observation: Observation, state: PolicyState, settings: PolicySettings
) -> tuple[int, ScaleReason]:
    active = observation.num_in_state(NodeState.ACTIVE)
    if state.target is None:
        joining = active + (observation.num_offered or 0)
        return max(active, min(joining, settings.scaling.most_nodes)), ScaleReason.ADOPT
    target = max(settings.scaling.minimum_nodes, min(state.target, settings.scaling.most_nodes))
    if observation.num_offered is not None:
        # Nodes that nobody has started yet cannot be waited for: take those that are there.
        target = min(target, active + observation.num_offered)
    return target, ScaleReason.TARGET


def _missing_since(observation: Observation, state: PolicyState) -> dict[str, float]:
    """Return since when each node that ought to be alive is not, kept from the last look where it was so."""
    alive_weights = {record.name for record in observation.weights}
    missing = [entry.name for entry in observation.snapshot.nodes if not observation.is_alive(entry)]
    missing += observation.routed_weight_nodes - alive_weights
    return {name: state.missing_since_s.get(name, observation.now_s) for name in missing}


def is_owned(entry: AttentionNodeEntry, operation: Operation | None) -> bool:
    """Return whether ``operation`` looks after a node.

    It does so for the nodes that it adds, retires or releases; one that is lost while it drains is removed
    like an active one.
    """
    return operation is not None and entry.node_id in operation.node_ids


def _removal(entry: AttentionNodeEntry, observation: Observation, lost: bool) -> Removal | None:
    def removal(reason: RemovalReason, detail: str) -> Removal:
        return Removal(
            node_id=entry.node_id,
            incarnation=entry.incarnation,
            state=entry.state,
            reason=reason,
            detail=detail,
        )

    if is_owned(entry, observation.operation) and entry.state is not NodeState.DRAINING:
        return None
    if entry.node_id in observation.ended:
        return removal(RemovalReason.PROCESS_ENDED, observation.ended[entry.node_id])
    record = observation.attention.get(entry.node_id)
    if record is not None and record.incarnation != entry.incarnation:
        return removal(RemovalReason.RESTARTED, f"{record.name} holds the lease now")
    if lost:
        return removal(RemovalReason.LEASE_LOST, "its lease ran out")
    if entry.state in (NodeState.ACTIVE, NodeState.DRAINING):
        return None
    return removal(RemovalReason.ABANDONED, f"no operation looks after this {entry.state} node")
