"""What to do about the attention pool. Pure: an observation and a state in, a decision and a state out.

Today: keep the number of nodes that was asked for, take lost nodes out, put strays right. A predictive
policy will set the target from growth and occupancy; it belongs in ``decide`` and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from kernelflume.core.routing import NodeState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kernelflume.core.leases import LeaseRecord
    from kernelflume.core.routing import AttentionNodeEntry
    from kernelflume.scaler.observe import Observation
    from kernelflume.scaler.operation import Operation


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

    minimum: int
    maximum: int
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
class Decision:
    """What to do now; all empty for nothing."""

    removals: tuple[Removal, ...] = ()
    resumed: tuple[str, ...] = ()
    """Draining nodes that no operation drains."""
    forgotten_weight_nodes: tuple[str, ...] = ()
    """Names of dead weight nodes whose routes are dropped."""
    scale_to: int | None = None
    scale_reason: ScaleReason | None = None


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
    if removals or decision.resumed or observation.operation is not None:
        return decision, state  # first the table, then look again
    if observation.now_s < state.retry_at_s:
        return decision, state
    scale_to, reason = _wanted(observation, state, settings)
    if scale_to == observation.num_in_state(NodeState.ACTIVE):
        return decision, state
    return replace(decision, scale_to=scale_to, scale_reason=reason), state


def after_operation(
    state: PolicyState, settings: PolicySettings, *, succeeded: bool, now_s: float
) -> PolicyState:
    """Remember how an operation of the policy's own ended: wait ever longer after failures in a row."""
    if succeeded:
        return replace(state, num_failures=0, retry_at_s=0.0)
    delay_s = min(settings.retry_min_s * 2.0**state.num_failures, settings.retry_max_s)
    return replace(state, num_failures=min(state.num_failures + 1, 30), retry_at_s=now_s + delay_s)


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

    def used_tokens(node_id: str) -> int:
        record = leases.get(node_id)
        return record.load.used_tokens if record is not None else 0

    newest_first = [entry.node_id for entry in reversed(entries)]
    return tuple(sorted(newest_first, key=used_tokens)[: max(0, min(count, len(entries) - 1))])


def _wanted(
    observation: Observation, state: PolicyState, settings: PolicySettings
) -> tuple[int, ScaleReason]:
    active = observation.num_in_state(NodeState.ACTIVE)
    if state.target is None:
        joining = active + (observation.num_offered or 0)
        return max(active, min(joining, settings.maximum)), ScaleReason.ADOPT
    target = max(settings.minimum, min(state.target, settings.maximum))
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
