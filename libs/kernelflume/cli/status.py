"""`kernelflume status`: the topology as the scaler sees it, as tables or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from kernelflume.core.routing import NodeState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.protobuf.message import Message
    from rich.console import RenderableType

    from kernelflume.rpc.v1 import common_pb2, scaler_pb2

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_STATE_STYLES: dict[str, str] = {
    NodeState.ACTIVE: "green",
    NodeState.DRAINING: "yellow",
    NodeState.PREWARMING: "cyan",
    NodeState.READY: "cyan",
}


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
    """Return the tables that a person reads."""
    parts: list[RenderableType] = [Text(headline(topology)), _attention_nodes(topology.attention_nodes)]
    parts.append(_weight_nodes(topology.weight_nodes))
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


def size(num_bytes: int) -> str:
    """Return a size for a person: 1536 is 1.5 KiB."""
    value, unit = float(num_bytes), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{num_bytes} B"


def ranges(owned: Sequence[common_pb2.OwnedRange]) -> str:
    """Return ranges in the notation of the documentation: a-1[0,512) a-2[512,600)."""
    return " ".join(f"{item.node_id}[{item.start},{item.end})" for item in owned)


def _attention_nodes(nodes: Sequence[scaler_pb2.AttentionNodeStatus]) -> Table:
    table = _table("attention node", "state", ">KV used", ">capacity", ">%", ">sequences", "address")
    for node in nodes:
        used, capacity = node.used_tokens, node.capacity_tokens
        state = node.state if node.alive else f"{node.state}, lease lost"
        table.add_row(
            node.node_id,
            Text(state, style=_STATE_STYLES.get(node.state, "") if node.alive else "red"),
            size(used * node.kv_bytes_per_token),
            size(capacity * node.kv_bytes_per_token),
            f"{100 * used / capacity:.1f}" if capacity else "-",
            str(node.num_sequences),
            node.address,
        )
    return table


def _weight_nodes(nodes: Sequence[scaler_pb2.WeightNodeStatus]) -> Table:
    table = _table("weight node", ">epoch", ">running", ">waiting", "address")
    for node in nodes:
        table.add_row(
            node.node_id,
            str(node.adopted_epoch),
            str(node.num_requests_running),
            str(node.num_requests_waiting),
            node.address,
        )
    return table


def _sequences(sequences: Sequence[scaler_pb2.SequenceRouteStatus]) -> Table:
    table = _table("sequence", "of weight node", ">tokens", "ranges")
    for sequence in sequences:
        num_tokens = sequence.ranges[-1].end if sequence.ranges else 0
        table.add_row(
            str(sequence.sequence_id), sequence.weight_node, str(num_tokens), ranges(sequence.ranges)
        )
    return table


def _table(*columns: str) -> Table:
    """Make a table; a column named with > in front is aligned right."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(
            column.removeprefix(">"), justify="right" if column.startswith(">") else "left", overflow="fold"
        )
    return table
