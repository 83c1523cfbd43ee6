"""The view of the whole cluster that people and the command line ask for, and operations as messages."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kernelflume.core.leases import LeaseRecord, NodeKind
from kernelflume.core.routing import NodeState
from kernelflume.rpc.codec import route_to_proto
from kernelflume.rpc.v1 import scaler_pb2
from kernelflume.scaler.sizing import FOREVER_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kernelflume.core.routing import AttentionNodeEntry
    from kernelflume.scaler.decision_log import DecisionRecord
    from kernelflume.scaler.operation import Operation
    from kernelflume.scaler.sizing import Sizing
    from kernelflume.store.base import RoutingStore


async def read_topology(
    store: RoutingStore,
    *,
    target: int | None,
    operation: Operation | None,
    mode: str,
    sizing: Sizing | None,
    decisions: Iterable[DecisionRecord],
    token_bytes: int,
    now_s: float,
) -> scaler_pb2.Topology:
    """Read everything that is in the store.

    Args:
        store: the store.
        target: active nodes wanted; None reports as many as there are.
        operation: the newest operation.
        mode: automatic or manual.
        sizing: the newest sizing decision.
        decisions: the newest ones, oldest first.
        token_bytes: bytes of one token's keys and values, 0 if unknown.
        now_s: the scaler's clock, for the operation's present phase.

    Raises:
        UnavailableError: the store cannot be reached.
    """
    snapshot = await store.read()
    attention = {record.name: record for record in await store.living(NodeKind.ATTENTION)}
    weights = await store.living(NodeKind.WEIGHT)
    routes = await store.routes()
    fill_s = {node.node_id: node.fill_s for node in sizing.figures.nodes} if sizing is not None else {}
    tails: Counter[str] = Counter()
    for record in weights:
        tails.update(dict(record.load.tails))
    return scaler_pb2.Topology(
        epoch=snapshot.epoch,
        attention_nodes=[
            _attention_node(
                entry,
                attention,
                token_bytes,
                num_tails=tails[entry.node_id],
                fill_s=fill_s.get(entry.node_id, FOREVER_S),
            )
            for entry in snapshot.nodes
        ],
        weight_nodes=[_weight_node(record) for record in weights],
        sequences=[
            scaler_pb2.SequenceRouteStatus(
                weight_node=weight_node, sequence_id=sequence_id, ranges=route_to_proto(route)
            )
            for weight_node, held in routes.items()
            for sequence_id, route in sorted(held.items())
        ],
        target_attention_nodes=len(snapshot.in_state(NodeState.ACTIVE)) if target is None else target,
        operation=operation_to_proto(operation, now_s=now_s) if operation is not None else None,
        scaling_mode=mode,
        pool_fill_seconds=_known(sizing.figures.horizon_s) if sizing is not None else 0.0,
        decisions=[
            scaler_pb2.ScalingDecision(
                time=record.time,
                action=str(record.sizing.action),
                reason=str(record.sizing.reason),
                target_attention_nodes=record.sizing.target,
                active_attention_nodes=len(record.view.nodes),
            )
            for record in decisions
        ],
    )


def _attention_node(
    entry: AttentionNodeEntry,
    living: Mapping[str, LeaseRecord],
    token_bytes: int,
    *,
    num_tails: int,
    fill_s: float,
) -> scaler_pb2.AttentionNodeStatus:
    record = living.get(entry.name)
    return scaler_pb2.AttentionNodeStatus(
        node_id=entry.node_id,
        incarnation=entry.incarnation,
        address=entry.address,
        state=str(entry.state),
        capacity_tokens=entry.capacity_tokens,
        used_tokens=record.load.used_tokens if record is not None else 0,
        num_sequences=record.load.num_sequences if record is not None else 0,
        kv_bytes_per_token=token_bytes,
        alive=record is not None,
        threshold_tokens=entry.threshold_tokens,
        fill_seconds=_known(fill_s),
        num_tails=num_tails,
        cached_tokens=record.load.cached_tokens if record is not None else 0,
        shared_tokens=record.load.shared_tokens if record is not None else 0,
        pinned_tokens=record.load.pinned_tokens if record is not None else 0,
    )


def _weight_node(record: LeaseRecord) -> scaler_pb2.WeightNodeStatus:
    return scaler_pb2.WeightNodeStatus(
        node_id=record.node_id,
        incarnation=record.incarnation,
        address=record.address,
        adopted_epoch=record.load.adopted_epoch,
        num_requests_running=record.load.num_requests_running,
        num_requests_waiting=record.load.num_requests_waiting,
        decode_step_seconds=record.load.decode_step_s,
        waiting_tokens=record.load.waiting_tokens,
        role=record.load.role,
    )


def _known(seconds: float) -> float:
    """Return a time for a message, where 0 stands for one without end."""
    return 0.0 if seconds >= FOREVER_S else seconds


def operation_to_proto(operation: Operation, *, now_s: float) -> scaler_pb2.Operation:
    """Encode an operation; its present phase has lasted until ``now_s``."""
    return scaler_pb2.Operation(
        operation_id=operation.operation_id,
        target_attention_nodes=operation.target,
        initial_attention_nodes=operation.initial,
        phase=str(operation.phase),
        result=str(operation.result) if operation.result is not None else "",
        reason=operation.reason,
        history=[
            scaler_pb2.OperationPhase(phase=str(span.phase), seconds=span.seconds(now_s))
            for span in operation.history
        ],
        node_ids=operation.node_ids,
        origin=str(operation.origin),
        cause=operation.cause,
    )
