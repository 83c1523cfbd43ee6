"""What people ask of the scaler, checked before anything is done for it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelflume.core.errors import InvalidRequestError
from kernelflume.core.routing import NodeEvent, NodeState
from kernelflume.scaler.operation import OperationEvent, Origin

if TYPE_CHECKING:
    from kernelflume.core.routing import RoutingSnapshot
    from kernelflume.scaler.operation import Operation

_MAX_ID_CHARS = 200
"""Ids are logged, and shown on terminals."""
_MAX_DEADLINE_S = 7 * 24 * 3600.0
"""Longer than anybody waits for a node, and a time that every clock and call can count."""


def check_request(operation_id: str, deadline_s: float) -> None:
    """Check what every request for an operation brings.

    Raises:
        InvalidRequestError: an argument is out of bounds.
    """
    if not operation_id:
        raise InvalidRequestError("operation_id must not be empty", parameter="operation_id")
    if len(operation_id) > _MAX_ID_CHARS or not operation_id.isprintable():
        raise InvalidRequestError(
            f"operation_id must be at most {_MAX_ID_CHARS} printable characters", parameter="operation_id"
        )
    # Written so that NaN is refused too.
    if not 0 <= deadline_s <= _MAX_DEADLINE_S:
        raise InvalidRequestError(
            f"deadline_seconds must be from 0 to {_MAX_DEADLINE_S:g}, not {deadline_s:g}",
            parameter="deadline_seconds",
        )


def num_left_without(
    snapshot: RoutingSnapshot, node_ids: tuple[str, ...], *, running: Operation | None, minimum: int
) -> int:
    """Return how many active nodes are left once these are drained.

    Nodes that an operation of the policy's own drains count as active: it would be undone.

    Args:
        snapshot: the routing table.
        node_ids: the nodes to drain.
        running: the operation that is under way, if any.
        minimum: fewest active nodes.

    Raises:
        InvalidRequestError: fewer nodes than the minimum would be left.
        NotFoundError: a node is not in the routing table.
        LifecycleError: a node is not active.
    """
    if running is not None and running.origin is Origin.POLICY and running.allows(OperationEvent.CANCEL):
        ours = [node.node_id for node in snapshot.in_state(NodeState.DRAINING)]
        ours = [node_id for node_id in ours if node_id in running.node_ids]
        snapshot = snapshot.with_event(NodeEvent.RESUME, *ours) if ours else snapshot
    snapshot.with_event(NodeEvent.DRAIN, *node_ids)  # raises where that is not possible
    num_left = len(snapshot.in_state(NodeState.ACTIVE)) - len(node_ids)
    if num_left < minimum:
        raise InvalidRequestError(
            f"{num_left} active nodes would be left, fewer than the minimum of {minimum}",
            parameter="node_ids",
        )
    return num_left
