"""The state that the page shows, as JSON by sections. Nothing is read or written here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernelflume.router.ui.sight import LAUNCHING, launching_nodes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.core.leases import LeaseRecord
    from kernelflume.core.routing import AttentionNodeEntry
    from kernelflume.router.latencies import Latencies, RecentLatencies
    from kernelflume.router.ui.history import Event
    from kernelflume.router.ui.sight import Sight
    from kernelflume.rpc.v1 import scaler_pb2

MAX_SEQUENCES = 40
"""Sequences that are sent with their ranges: the longest. More would not be told apart on a screen."""
MAX_RANGES = 64
"""Ranges of one sequence that are sent; those before are taken together as one of no node."""
MAX_NODES = 256
"""Nodes of a kind that are sent."""
_SUMMARY_SLOTS = 12
"""Slots that make the figures of the last minute."""
_MS_DIGITS = 2


def cluster_section(sight: Sight, *, model: str, version: str) -> dict[str, Any]:
    """Return what concerns the cluster as a whole.

    Args:
        sight: what is known.
        model: name that the model is served under.
        version: of the router.
    """
    topology = sight.topology
    return {
        "model": model,
        "version": version,
        "epoch": sight.table.epoch if sight.table is not None else None,
        "store_fault": sight.store_fault,
        "scaler_fault": sight.scaler_fault,
        "scaling": None if topology is None else _scaling(topology),
    }


def attention_section(sight: Sight) -> dict[str, Any]:
    """Return the attention nodes in table order, then those that an operation is starting."""
    entries = sight.table.nodes if sight.table is not None else ()
    leases = {record.name: record for record in sight.attention_leases}
    topology = sight.topology
    told = {node.node_id: node for node in topology.attention_nodes} if topology is not None else {}
    tails: dict[str, int] = {}
    for record in sight.weight_leases:
        for node_id, count in record.load.tails:
            tails[node_id] = tails.get(node_id, 0) + count
    nodes = [
        _attention_node(entry, leases.get(entry.name), told.get(entry.node_id), tails.get(entry.node_id, 0))
        for entry in entries[:MAX_NODES]
    ]
    nodes += [_launching(node_id) for node_id in launching_nodes(sight)]
    return {"nodes": nodes, "num_nodes": max(len(nodes), len(entries))}


def weight_section(sight: Sight) -> dict[str, Any]:
    """Return the weight nodes that the router uses, by their names."""
    leases = {record.address: record for record in sight.weight_leases}
    nodes = []
    for node in sight.weight_nodes:
        record = leases.get(node.address)
        load = record.load if record is not None else None
        nodes.append(
            {
                "id": record.node_id if record is not None else node.address,
                "address": node.address,
                "role": node.role,
                "trouble": node.trouble,
                "num_tokens": node.num_tokens,
                "num_requests": node.num_requests,
                "num_running": load.num_requests_running if load is not None else None,
                "num_waiting": load.num_requests_waiting if load is not None else None,
                "waiting_tokens": load.waiting_tokens if load is not None else None,
                "adopted_epoch": load.adopted_epoch if load is not None else None,
                "num_prepared": len(load.prepared_nodes) if load is not None else None,
                "step_ms": _ms(load.decode_step_s) if load is not None and load.decode_step_s else None,
                "step_rows": load.num_decode_rows if load is not None else None,
            }
        )
    nodes.sort(key=lambda node: str(node["id"]))
    return {"nodes": nodes[:MAX_NODES], "num_nodes": len(nodes)}


def sequence_section(sight: Sight) -> dict[str, Any]:
    """Return the longest running sequences with their ranges, in the order of their ids."""
    names = {record.address: record.node_id for record in sight.weight_leases}
    longest = sorted(sight.sequences, key=lambda sequence: -sequence.route.num_tokens)[:MAX_SEQUENCES]
    shown = []
    for sequence in sorted(longest, key=lambda sequence: (sequence.weight_node, sequence.sequence_id)):
        ranges: list[list[Any]] = [
            [owned.node_id, owned.tokens.start, owned.tokens.end] for owned in sequence.route.ranges
        ]
        if len(ranges) > MAX_RANGES:
            ranges = [["", 0, ranges[-MAX_RANGES][1]], *ranges[-MAX_RANGES:]]
        shown.append(
            {
                "id": f"{names.get(sequence.weight_node, sequence.weight_node)}/{sequence.sequence_id}",
                "num_tokens": sequence.route.num_tokens,
                "ranges": ranges,
            }
        )
    return {"sequences": shown, "num_sequences": len(sight.sequences)}


def latency_section(first_token: RecentLatencies, between_tokens: RecentLatencies) -> dict[str, Any]:
    """Return TTFT and TPOT by slots, the oldest first, and of the last minute."""
    return {
        "slot_s": first_token.slot_s,
        "ttft": _series(first_token),
        "tpot": _series(between_tokens),
    }


def event_section(events: Sequence[Event], topology: scaler_pb2.Topology | None) -> dict[str, Any]:
    """Return what happened, the oldest first, and the scaler's decisions that change something."""
    return {
        "events": [
            {
                "at": round(event.at, 3),
                "kind": event.kind,
                "node": event.node,
                "before": event.before,
                "after": event.after,
                "epoch": event.epoch,
                "since": round(event.since, 3),
            }
            for event in events
        ],
        "decisions": [
            {
                "at": decision.time,
                "action": decision.action,
                "reason": decision.reason,
                "num_active": decision.active_attention_nodes,
                "num_target": decision.target_attention_nodes,
            }
            for decision in (topology.decisions if topology is not None else ())
            if decision.action != "none"
        ],
    }


def _scaling(topology: scaler_pb2.Topology) -> dict[str, Any]:
    operation = topology.operation
    return {
        "mode": topology.scaling_mode,
        "num_target": topology.target_attention_nodes,
        "fill_s": round(topology.pool_fill_seconds, 1) or None,
        "operation": {
            "id": operation.operation_id,
            "origin": operation.origin,
            "cause": operation.cause,
            "num_before": operation.initial_attention_nodes,
            "num_target": operation.target_attention_nodes,
            "phase": operation.phase,
            "result": operation.result,
            "reason": operation.reason,
            "nodes": list(operation.node_ids),
            "phases": [[span.phase, round(span.seconds, 2)] for span in operation.history],
        }
        if operation.operation_id
        else None,
    }


def _attention_node(
    entry: AttentionNodeEntry,
    lease: LeaseRecord | None,
    told: scaler_pb2.AttentionNodeStatus | None,
    num_tails: int,
) -> dict[str, Any]:
    load = lease.load if lease is not None else None
    return {
        "id": entry.node_id,
        "incarnation": entry.incarnation,
        "address": entry.address,
        "state": str(entry.state),
        "alive": lease is not None,
        "capacity_tokens": entry.capacity_tokens,
        "threshold_tokens": entry.threshold_tokens,
        "used_tokens": load.used_tokens if load is not None else 0,
        "reserved_tokens": load.reserved_tokens if load is not None else 0,
        "num_sequences": load.num_sequences if load is not None else 0,
        "num_tails": num_tails,
        "token_bytes": told.kv_bytes_per_token if told is not None else 0,
        "fill_s": round(told.fill_seconds, 1) or None if told is not None else None,
    }


def _launching(node_id: str) -> dict[str, Any]:
    return {
        "id": node_id,
        "incarnation": "",
        "address": "",
        "state": LAUNCHING,
        "alive": True,
        "capacity_tokens": 0,
        "threshold_tokens": 0,
        "used_tokens": 0,
        "reserved_tokens": 0,
        "num_sequences": 0,
        "num_tails": 0,
        "token_bytes": 0,
        "fill_s": None,
    }


def _series(recent: RecentLatencies) -> dict[str, Any]:
    slots = recent.slots()
    return {
        "p50_ms": [_ms(slot.p50_s) if slot is not None else None for slot in slots],
        "p99_ms": [_ms(slot.p99_s) if slot is not None else None for slot in slots],
        "counts": [slot.count if slot is not None else 0 for slot in slots],
        "minute": _summary(recent.last(_SUMMARY_SLOTS)),
    }


def _summary(latencies: Latencies | None) -> dict[str, Any] | None:
    if latencies is None:
        return None
    return {"p50_ms": _ms(latencies.p50_s), "p99_ms": _ms(latencies.p99_s), "count": latencies.count}


def _ms(seconds: float) -> float:
    return round(1000 * seconds, _MS_DIGITS)
