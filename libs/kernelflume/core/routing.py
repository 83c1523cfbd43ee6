"""The membership half of the routing table: an immutable snapshot and its pure edits (paper section 4.1).

``RoutingSnapshot`` is what a weight node adopts between two steps. An edit returns the next snapshot, one
epoch on; ``kernelflume.store`` publishes it by compare-and-set on the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from kernelflume.core.errors import LifecycleError, NotFoundError
from kernelflume.core.names import node_name

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA_VERSION = 1
"""History: 1 = epoch, nodes with state, address, incarnation, capacity and threshold."""


class NodeState(StrEnum):
    """Life of an attention node as the table sees it."""

    PREWARMING = "prewarming"
    """Launched; memory, peers and kernels are being prepared; never routable."""
    READY = "ready"
    """Prepared by every weight node; not routable before it is published as active."""
    ACTIVE = "active"
    """Routable: new ranges may be placed here."""
    DRAINING = "draining"
    """Holds old ranges; receives no new ones."""
    RETIRED = "retired"
    """Out of the table for readers of this epoch; released once no reader has an older one."""


class NodeEvent(StrEnum):
    """What can happen to an attention node."""

    PREPARED = "prepared"
    PUBLISH = "publish"
    DRAIN = "drain"
    RESUME = "resume"
    RETIRE = "retire"


TRANSITIONS: dict[tuple[NodeState, NodeEvent], NodeState] = {
    (NodeState.PREWARMING, NodeEvent.PREPARED): NodeState.READY,
    (NodeState.READY, NodeEvent.PUBLISH): NodeState.ACTIVE,
    (NodeState.ACTIVE, NodeEvent.DRAIN): NodeState.DRAINING,
    (NodeState.DRAINING, NodeEvent.RESUME): NodeState.ACTIVE,
    (NodeState.DRAINING, NodeEvent.RETIRE): NodeState.RETIRED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionNodeEntry:
    """One attention node in the table."""

    node_id: str
    incarnation: str
    """Differs at every start of a process with this node id; part of its transport name."""
    address: str
    """host:port of its gRPC control service."""
    state: NodeState
    capacity_tokens: int
    """Tokens whose keys and values fit the node's pool."""
    threshold_tokens: int
    """C_thresh of paper section 4.2 in tokens; at most ``capacity_tokens``."""

    @property
    def name(self) -> str:
        """Transport name, unique for each start of the node."""
        return node_name(self.node_id, self.incarnation)


@dataclass(frozen=True, slots=True)
class RoutingSnapshot:
    """All attention nodes at one epoch. Edits return the next snapshot and never change this one."""

    epoch: int = 0
    nodes: tuple[AttentionNodeEntry, ...] = field(default=())

    def find(self, node_id: str) -> AttentionNodeEntry | None:
        """Return the entry of ``node_id``, or None."""
        return next((node for node in self.nodes if node.node_id == node_id), None)

    def get(self, node_id: str) -> AttentionNodeEntry:
        """Return the entry of ``node_id``.

        Raises:
            NotFoundError: the node is not in the table.
        """
        entry = self.find(node_id)
        if entry is None:
            raise NotFoundError(f"attention node {node_id} is not in the routing table at epoch {self.epoch}")
        return entry

    def in_state(self, *states: NodeState) -> tuple[AttentionNodeEntry, ...]:
        """Return the nodes in any of ``states``, in table order."""
        return tuple(node for node in self.nodes if node.state in states)

    def with_node(self, *entries: AttentionNodeEntry) -> Self:
        """Add nodes that have just been launched, all in a single epoch.

        Raises:
            LifecycleError: an id is taken, or an entry's state is not PREWARMING; nothing is changed.
        """
        nodes = self.nodes
        for entry in entries:
            if any(node.node_id == entry.node_id for node in nodes):
                raise LifecycleError(f"attention node {entry.node_id} is already in the routing table")
            if entry.state is not NodeState.PREWARMING:
                raise LifecycleError(
                    f"attention node {entry.node_id} must join as prewarming, not {entry.state}"
                )
            nodes = (*nodes, entry)
        return replace(self, epoch=self.epoch + 1, nodes=nodes)

    def with_event(self, event: NodeEvent, *node_ids: str) -> Self:
        """Apply one event to each of ``node_ids`` in a single epoch.

        Raises:
            NotFoundError: a node is not in the table.
            LifecycleError: the event is illegal in a node's state; nothing is changed.
        """
        changed: dict[str, AttentionNodeEntry] = {}
        for node_id in node_ids:
            entry = self.get(node_id)
            state = TRANSITIONS.get((entry.state, event))
            if state is None:
                raise LifecycleError(f"attention node {node_id} is {entry.state}: {event} is not legal")
            changed[node_id] = replace(entry, state=state)
        nodes = tuple(changed.get(node.node_id, node) for node in self.nodes)
        return replace(self, epoch=self.epoch + 1, nodes=nodes)

    def with_thresholds(self, thresholds: Mapping[str, int]) -> Self:
        """Set C_thresh of some nodes, in tokens.

        Raises:
            NotFoundError: a node is not in the table.
        """
        for node_id in thresholds:
            self.get(node_id)
        nodes = tuple(
            replace(node, threshold_tokens=min(node.capacity_tokens, thresholds[node.node_id]))
            if node.node_id in thresholds
            else node
            for node in self.nodes
        )
        return replace(self, epoch=self.epoch + 1, nodes=nodes)

    def without(self, *node_ids: str) -> Self:
        """Take nodes out of the table: retired, failed to prewarm, or lost.

        Raises:
            NotFoundError: a node is not in the table.
        """
        gone = {self.get(node_id).node_id for node_id in node_ids}
        nodes = tuple(node for node in self.nodes if node.node_id not in gone)
        return replace(self, epoch=self.epoch + 1, nodes=nodes)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form kept in the store."""
        return {
            "schema": SCHEMA_VERSION,
            "epoch": self.epoch,
            "nodes": [
                {
                    "node_id": node.node_id,
                    "incarnation": node.incarnation,
                    "address": node.address,
                    "state": str(node.state),
                    "capacity_tokens": node.capacity_tokens,
                    "threshold_tokens": node.threshold_tokens,
                }
                for node in self.nodes
            ],
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """Read ``to_dict``'s form.

        Raises:
            LifecycleError: the schema version is another one.
        """
        if fields.get("schema") != SCHEMA_VERSION:
            raise LifecycleError(
                f"routing table has schema {fields.get('schema')}, this version reads {SCHEMA_VERSION}"
            )
        nodes = tuple(
            AttentionNodeEntry(**{**node, "state": NodeState(node["state"])}) for node in fields["nodes"]
        )
        return cls(epoch=fields["epoch"], nodes=nodes)
