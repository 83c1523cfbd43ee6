"""Scale operations and nodes as they are seen in one topology after another. Does no input or output."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelflume.core.recording import RecordedOperation

if TYPE_CHECKING:
    from kernelflume.rpc.v1 import scaler_pb2


@dataclass(slots=True)
class _Seen:
    started_at_s: float
    newest: scaler_pb2.Operation


@dataclass(slots=True)
class Sightings:
    """What the scaler showed while a run went on, on the clock of whoever looked."""

    nodes: tuple[str, ...] = ()
    """Attention nodes of the first topology."""
    capacity_tokens: int = 0
    """Of each of them."""
    token_bytes: int = 0
    fault: str = ""
    """Why this is no run that can be replayed; '' if it can."""
    _operations: dict[str, _Seen] = field(default_factory=dict)
    _before: str = ""
    """The operation that had ended before the first look."""
    _present: frozenset[str] = frozenset()
    _named: set[str] = field(default_factory=set)
    """Nodes that an operation added or removed."""

    def add(self, topology: scaler_pb2.Topology, at_s: float) -> None:
        """Note what is shown at this time."""
        present = frozenset(node.node_id for node in topology.attention_nodes)
        operation = topology.operation if topology.HasField("operation") else None
        if not self.nodes:
            self.nodes = tuple(node.node_id for node in topology.attention_nodes)
            self.capacity_tokens = max((node.capacity_tokens for node in topology.attention_nodes), default=0)
            self.token_bytes = max((node.kv_bytes_per_token for node in topology.attention_nodes), default=0)
            if operation is not None and operation.result:
                self._before = operation.operation_id
        if operation is not None and operation.operation_id != self._before:
            self.operation(operation, at_s)
        if topology.scaling_mode != "automatic":
            self._complain("the number of nodes was not the policy's to choose (`kernelflume policy resume`)")
        if len(topology.weight_nodes) > 1:
            self._complain("there were several weight nodes")
        if lost := sorted(self._present - present - self._named):
            self._complain(f"attention node {lost[0]} was lost")
        self._present = present

    def operation(self, operation: scaler_pb2.Operation, at_s: float) -> None:
        """Note the present state of an operation; when it began follows from the first look at it."""
        self._named.update(operation.node_ids)
        if operation.operation_id in self._operations:
            self._operations[operation.operation_id].newest = operation
        else:
            so_far_s = sum(phase.seconds for phase in operation.history)
            self._operations[operation.operation_id] = _Seen(at_s - so_far_s, operation)

    def unfinished(self) -> list[str]:
        """Return the ids of operations whose end was not seen."""
        return [name for name, seen in self._operations.items() if not seen.newest.result]

    def recorded(self, begun_s: float) -> tuple[RecordedOperation, ...]:
        """Return the operations, oldest first, their times counted from ``begun_s``."""
        return tuple(
            RecordedOperation(
                started_s=seen.started_at_s - begun_s,
                initial=seen.newest.initial_attention_nodes,
                target=seen.newest.target_attention_nodes,
                cause=seen.newest.cause,
                result=seen.newest.result,
                node_ids=tuple(seen.newest.node_ids),
                phases=tuple((phase.phase, phase.seconds) for phase in seen.newest.history),
            )
            for seen in sorted(self._operations.values(), key=lambda each: each.started_at_s)
        )

    def _complain(self, fault: str) -> None:
        self.fault = self.fault or fault
