"""Automatic scaling as `kernelflume status` and `top` show it: who chooses, what runs, what was decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelflume.cli.tables import duration, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from kernelflume.rpc.v1 import scaler_pb2

_AUTOMATIC = "automatic"
_ORIGINS = {"person": " by a person", "policy": " by the policy"}
_UPKEEP = ("target", "adopt")
"""Causes of operations that the scaler begins with or without an automatic policy."""


def mode_line(topology: scaler_pb2.Topology) -> str:
    """Return who chooses the number of nodes, what follows from that, and how to change it."""
    if topology.scaling_mode != _AUTOMATIC:
        return (
            "scaling: manual, the number of nodes stays as it is until a person changes it; where the policy "
            "is automatic, `kernelflume policy resume` lets it choose again"
        )
    if topology.pool_fill_seconds:
        return (
            f"scaling: automatic, at this growth the pool is full in {duration(topology.pool_fill_seconds)}"
        )
    return "scaling: automatic"


def operation_line(operation: scaler_pb2.Operation) -> str:
    """Return whose operation it is and why, its nodes, and how long each phase took; '' for none."""
    if not operation.operation_id:
        return ""
    by = " by the scaler" if operation.cause in _UPKEEP else _ORIGINS.get(operation.origin, "")
    cause = f" ({operation.cause})" if operation.cause else ""
    nodes = f", {' '.join(operation.node_ids)}" if operation.node_ids else ""
    change = f"{operation.initial_attention_nodes} -> {operation.target_attention_nodes}"
    line = f"{operation.operation_id}{by}{cause}: {change} attention nodes{nodes}"
    if operation.result:
        reason = f" ({operation.reason})" if operation.reason else ""
        line = f"last operation {line}: {operation.result}{reason}"
    else:
        line = f"operation {line}"
    phases = phase_times(operation)
    return f"{line}; {phases}" if phases else line


def phase_times(operation: scaler_pb2.Operation) -> str:
    """Return the phases of an operation in order; the present one of a running operation is not over yet."""
    phases = [
        f"{span.phase} {span.seconds:.2f} s"
        for span in operation.history
        if not (operation.result and span.phase == operation.phase)
    ]
    if phases and not operation.result:
        phases[-1] += " so far"
    return ", ".join(phases)


def decision_table(decisions: Sequence[scaler_pb2.ScalingDecision], limit: int) -> Table:
    """Return the newest ``limit`` decisions, the newest first."""
    rows = table("decided at (UTC)", "action", "reason", ">nodes")
    for decision in reversed(decisions[-limit:]):
        active, target = decision.active_attention_nodes, decision.target_attention_nodes
        rows.add_row(
            decision.time[:19].replace("T", " "),
            decision.action,
            decision.reason,
            str(active) if target == active else f"{active} -> {target}",
        )
    return rows
