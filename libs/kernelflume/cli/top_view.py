"""What `kernelflume top` shows of one topology. Nothing is read or written here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from kernelflume.cli.scaling_view import decision_table, mode_line, operation_line
from kernelflume.cli.status import headline
from kernelflume.cli.tables import fill_time, kv_size, node_state, percent, step_time, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from kernelflume.cli.watch import Sight
    from kernelflume.rpc.v1 import scaler_pb2

_BAR_CELLS = 20
_NUM_DECISIONS = 8
_MIN_NODES = 3
"""At least so many attention nodes are shown, however low the terminal is."""
_USED, _FREE, _THRESHOLD = "█", "·", "│"


def render(sight: Sight, *, title: str, height: int | None = None) -> RenderableType:
    """Return the whole view.

    Args:
        sight: what is known.
        title: the first line.
        height: lines there are; attention nodes beyond them are counted, not shown. None has no limit.
    """
    parts: list[RenderableType] = [Text(title, style="bold")]
    if sight.fault:
        seen = "; what it said last is below" if sight.topology is not None else ""
        parts.append(Text(f"{sight.fault} (trying again{seen})", style="bold yellow"))
    topology = sight.topology
    if topology is None:
        return Group(*parts)
    parts += [Text(headline(topology)), Text(mode_line(topology))]
    if topology.HasField("operation"):
        parts.append(Text(operation_line(topology.operation)))
    others = len(parts) + _lines(topology.weight_nodes) + _lines(topology.decisions[-_NUM_DECISIONS:])
    # Two lines for the heading and for the nodes that are left out.
    room = len(topology.attention_nodes) if height is None else max(_MIN_NODES, height - others - 2)
    parts.append(_attention_nodes(topology.attention_nodes[:room]))
    num_hidden = len(topology.attention_nodes) - room
    if num_hidden > 0:
        parts.append(Text(f"and {num_hidden} more: `kernelflume status` shows all", style="dim"))
    if topology.weight_nodes:
        parts.append(_weight_nodes(topology.weight_nodes))
    if topology.decisions:
        parts.append(decision_table(topology.decisions, _NUM_DECISIONS))
    return Group(*parts)


def occupancy_bar(node: scaler_pb2.AttentionNodeStatus, cells: int = _BAR_CELLS) -> Text:
    """Return a bar of a node's capacity: filled as far as it is used, with a mark at its threshold."""
    capacity = node.capacity_tokens
    if not capacity:
        return Text(_FREE * cells, style="dim")
    filled = min(cells, round(cells * node.used_tokens / capacity))
    if node.used_tokens and not filled:
        filled = 1  # little is not nothing
    is_over = 0 < node.threshold_tokens <= node.used_tokens
    bar = Text(_USED * filled, style="red" if is_over else "green")
    bar.append(_FREE * (cells - filled), style="dim")
    if node.threshold_tokens:
        mark = min(cells - 1, round(cells * node.threshold_tokens / capacity))
        bar = Text.assemble(bar[:mark], (_THRESHOLD, "bold"), bar[mark + 1 :])
    return bar


def _lines(rows: Sequence[object]) -> int:
    """Return the lines of a table with its heading; without rows it is not shown."""
    return len(rows) + 1 if rows else 0


def _attention_nodes(nodes: Sequence[scaler_pb2.AttentionNodeStatus]) -> Table:
    rows = table(*("attention node", "state", "occupancy", ">%", ">KV used", ">cached", ">tails", ">full in"))
    for node in nodes:
        rows.add_row(
            node.node_id,
            node_state(node),
            occupancy_bar(node),
            percent(node.used_tokens, node.capacity_tokens),
            kv_size(node.used_tokens, node.kv_bytes_per_token),
            kv_size(node.cached_tokens, node.kv_bytes_per_token),
            str(node.num_tails),
            fill_time(node),
        )
    return rows


def _weight_nodes(nodes: Sequence[scaler_pb2.WeightNodeStatus]) -> Table:
    rows = table("weight node", "role", ">epoch", ">running", ">waiting", ">tokens waiting", ">TPOT")
    for node in nodes:
        rows.add_row(
            node.node_id,
            node.role,
            str(node.adopted_epoch),
            str(node.num_requests_running),
            str(node.num_requests_waiting),
            str(node.waiting_tokens),
            step_time(node.decode_step_seconds),
        )
    return rows
