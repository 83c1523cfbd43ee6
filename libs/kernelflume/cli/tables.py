"""What the views of the topology share: tables, states of nodes, and figures as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from kernelflume.core.routing import NodeState

if TYPE_CHECKING:
    from kernelflume.rpc.v1 import scaler_pb2

UNKNOWN = "-"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_STATE_STYLES: dict[str, str] = {
    NodeState.ACTIVE: "green",
    NodeState.DRAINING: "yellow",
    NodeState.PREWARMING: "cyan",
    NodeState.READY: "cyan",
}


def table(*columns: str) -> Table:
    """Make a table; a column named with > in front is aligned right."""
    result = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for column in columns:
        result.add_column(
            column.removeprefix(">"), justify="right" if column.startswith(">") else "left", overflow="fold"
        )
    return result


def node_state(node: scaler_pb2.AttentionNodeStatus) -> Text:
    """Return a node's state, and whether its lease is lost."""
    if not node.alive:
        return Text(f"{node.state}, lease lost", style="red")
    return Text(node.state, style=_STATE_STYLES.get(node.state, ""))


def size(num_bytes: int) -> str:
    """Return a size for a person: 1536 is 1.5 KiB."""
    value, unit = float(num_bytes), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{num_bytes} B"


def kv_size(num_tokens: int, bytes_per_token: int) -> str:
    """Return the size of tokens' keys and values; a scaler without a geometry knows their number alone."""
    return size(num_tokens * bytes_per_token) if bytes_per_token or not num_tokens else f"{num_tokens} tokens"


def percent(part: int, whole: int) -> str:
    """Return a share in percent, or a dash where there is no whole."""
    return f"{100 * part / whole:.1f}" if whole else UNKNOWN


def threshold_percent(node: scaler_pb2.AttentionNodeStatus) -> str:
    """Return where a node's threshold lies in its capacity; a node of a manual pool may have none."""
    return percent(node.threshold_tokens, node.capacity_tokens) if node.threshold_tokens else UNKNOWN


def duration(seconds: float) -> str:
    """Return a time for a person: 0.25 is 250 ms, 90 is 1.5 min."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def step_time(seconds: float) -> str:
    """Return the time of a decode step, which is a token's (TPOT), or a dash while there is none."""
    return f"{1000 * seconds:.1f} ms" if seconds else UNKNOWN


def fill_time(node: scaler_pb2.AttentionNodeStatus) -> str:
    """Return how long until a node is planned full (tau_fill).

    The scaler sends 0 both for no growth and for no time left; the occupancy tells which.
    """
    if node.state != NodeState.ACTIVE:
        return UNKNOWN
    if node.fill_seconds:
        return duration(node.fill_seconds)
    return "full" if 0 < node.threshold_tokens <= node.used_tokens else UNKNOWN
