"""`kernelflume status`: the topology as the scaler sees it, as tables or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from kernelflume.cli.scaling_view import decision_table, mode_line, operation_line
from kernelflume.cli.tables import (
    fill_time,
    kv_size,
    node_state,
    percent,
    step_time,
    table,
    threshold_percent,
)
from kernelflume.core.routing import NodeState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.message import Message
    from rich.console import RenderableType
    from rich.table import Table

    from kernelflume.rpc.v1 import common_pb2, scaler_pb2

_NUM_DECISIONS = 5


def to_dict(message: Message) -> dict[str, Any]:
    """Return every field of a message by its name; numbers stay numbers, where protobuf's JSON makes text."""

    def plain(value: Any) -> Any:
        return to_dict(value) if hasattr(value, "DESCRIPTOR") else value

    result: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            result[field.name] = [plain(item) for item in value]
        elif field.has_presence and not message.HasField(field.name):
            result[field.name] = None
        else:
            result[field.name] = plain(value)
    return result


def render(topology: scaler_pb2.Topology) -> RenderableType:
    """Return the lines and tables that a person reads."""
    parts: list[RenderableType] = [Text(headline(topology)), Text(mode_line(topology))]
    if topology.HasField("operation"):
        parts.append(Text(operation_line(topology.operation)))
    parts += [_attention_nodes(topology.attention_nodes), _weight_nodes(topology.weight_nodes)]
    if topology.decisions:
        parts.append(decision_table(topology.decisions, _NUM_DECISIONS))
    if topology.sequences:
        parts.append(_sequences(topology.sequences))
    return Group(*parts)


def headline(topology: scaler_pb2.Topology) -> str:
    """Return the epoch, the numbers of nodes and sequences, and the operation in progress, in one line."""
    active = sum(node.state == NodeState.ACTIVE for node in topology.attention_nodes)
    line = (
        f"epoch {topology.epoch}: {active} of {topology.target_attention_nodes} attention nodes active, "
        f"{len(topology.weight_nodes)} weight node(s), {len(topology.sequences)} sequence(s)"
    )
    operation = topology.operation
    if operation.operation_id and not operation.result:
        return f"{line}; scaling to {operation.target_attention_nodes}: {operation.phase}"
    return line


def ranges(owned: Sequence[common_pb2.OwnedRange]) -> str:
    """Return ranges in the notation of the documentation: a-1[0,512) a-2[512,600)."""
    return " ".join(f"{item.node_id}[{item.start},{item.end})" for item in owned)


def _attention_nodes(nodes: Sequence[scaler_pb2.AttentionNodeStatus]) -> Table:
    rows = table(
        *(
            "attention node",
            "state",
            ">KV used",
            ">cached",
            ">pinned",
            ">reused",
            ">capacity",
            ">%",
            ">threshold %",
        ),
        *(">tails", ">full in", ">sequences", "address"),
    )
    for node in nodes:
        rows.add_row(
            node.node_id,
            node_state(node),
            kv_size(node.used_tokens, node.kv_bytes_per_token),
            kv_size(node.cached_tokens, node.kv_bytes_per_token),
            kv_size(node.pinned_tokens, node.kv_bytes_per_token),
            kv_size(node.shared_tokens, node.kv_bytes_per_token),
            kv_size(node.capacity_tokens, node.kv_bytes_per_token),
            percent(node.used_tokens, node.capacity_tokens),
            threshold_percent(node),
            str(node.num_tails),
            fill_time(node),
            str(node.num_sequences),
            node.address,
        )
    return rows


def _weight_nodes(nodes: Sequence[scaler_pb2.WeightNodeStatus]) -> Table:
    rows = table(
        "weight node", "role", ">epoch", ">running", ">waiting", ">tokens waiting", ">step", "address"
    )
    for node in nodes:
        rows.add_row(
            node.node_id,
            node.role,
            str(node.adopted_epoch),
            str(node.num_requests_running),
            str(node.num_requests_waiting),
            str(node.waiting_tokens),
            step_time(node.decode_step_seconds),
            node.address,
        )
    return rows


def _sequences(sequences: Sequence[scaler_pb2.SequenceRouteStatus]) -> Table:
    rows = table("sequence", "of weight node", ">tokens", "ranges")
    for sequence in sequences:
        num_tokens = sequence.ranges[-1].end if sequence.ranges else 0
        rows.add_row(
            str(sequence.sequence_id), sequence.weight_node, str(num_tokens), ranges(sequence.ranges)
        )
    return rows
