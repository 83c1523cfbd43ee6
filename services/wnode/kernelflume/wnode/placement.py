"""Which attention node receives a sequence's next tokens. Pure: figures in, a choice with its reason out.

A tail moves only for a cause (its node drains, is full, or its range reached the length limit) or to give
a node that joined its share. A joining node is empty, so a rule that takes the emptiest node would send
every new write there at once; shares in proportion to free room do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class MoveReason(StrEnum):
    """Why a running sequence's tail moves."""

    NODE_NOT_ACTIVE = "node_not_active"
    """Its node drains or left the table."""
    SHARE = "share"
    """A node that joined gets its share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoom:
    """What is known of one active attention node."""

    node_id: str
    num_free_pages: int
    num_tails: int
    """Tails of this weight node's sequences that are there."""
    last_range: int = 0
    """Number of the last range that this weight node began there, counted over all nodes; 0 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailMove:
    """One running sequence's tail goes to another node."""

    sequence_id: int
    node_id: str
    reason: MoveReason


def choose_node(nodes: Sequence[NodeRoom], num_pages: int, *, avoid: str | None = None) -> str | None:
    """Choose the node for a new range that will need ``num_pages`` at once.

    The node with the most free pages for each tail it would then have is taken, so that load follows room
    and a newly joined node fills beside the others. Ties fall to the node that was given a range longest ago,
    then to the first in order: pages that are only kept to be found count as free, so that requests one after
    another would all come to one node, and drop what is kept there while the others' memory is empty.

    Args:
        nodes: the active nodes.
        num_pages: pages that must be free there.
        avoid: taken only when no other node has room.

    Returns:
        A node id, or None when none has room.
    """
    fitting = [node for node in nodes if node.num_free_pages >= num_pages]
    preferred = [node for node in fitting if node.node_id != avoid] or fitting
    if not preferred:
        return None
    return max(preferred, key=lambda node: (_room_per_tail(node), -node.last_range)).node_id


_BETTER = 2.0
"""A context that goes on leaves its node for one that has this many times the room: a further range costs an
exchange in each layer, and a beginning that many share must not draw all of them to one node."""


def go_on(nodes: Sequence[NodeRoom], tail: str) -> str | None:
    """Choose the node for the first own tokens of a sequence whose beginning was found in the pool.

    Args:
        nodes: the active nodes.
        tail: the node that holds the beginning's last block.

    Returns:
        ``tail``, unless it has no room or another has far more for each tail; None when none has room.
    """
    chosen = choose_node(nodes, 1)
    rooms = {node.node_id: node for node in nodes}
    if chosen is None or tail not in rooms or not rooms[tail].num_free_pages:
        return chosen
    return chosen if _room_per_tail(rooms[chosen]) > _BETTER * _room_per_tail(rooms[tail]) else tail


def _room_per_tail(node: NodeRoom) -> float:
    return node.num_free_pages / (node.num_tails + 1)


def spread_pages(
    nodes: Sequence[NodeRoom], num_pages: int, *, min_pages: int, after: str | None = None
) -> tuple[tuple[str, int], ...]:
    """Share a prompt's pages among nodes so that they are left equally free (paper section 4.2).

    Long contexts are then scanned by several nodes at once, and no node fills before the others. Only as
    many nodes take part as get ``min_pages`` each. The node with the fewest tails comes last: it gets the
    tail.

    Args:
        nodes: the active nodes.
        num_pages: pages of the prompt.
        min_pages: fewest pages that a range is worth.
        after: the node that holds what comes before, if anything does: it goes on first, in the same range.

    Returns:
        (node id, pages) in order of position; empty where fewer than two nodes would take part.
    """
    by_room = sorted(nodes, key=lambda node: -node.num_free_pages)
    for count in range(min(len(by_room), num_pages // max(1, min_pages)), 1, -1):
        chosen = by_room[:count]
        # With all of them left at this level, together they took what is needed; some may be one page lower.
        level, over = divmod(sum(node.num_free_pages for node in chosen) - num_pages, count)
        shares = {
            node.node_id: node.num_free_pages - level - (place < over) for place, node in enumerate(chosen)
        }
        if level >= 0 and min(shares.values()) >= min_pages:
            ordered = sorted(chosen, key=lambda node: (node.node_id != after, -node.num_tails))
            return tuple((node.node_id, shares[node.node_id]) for node in ordered)
    return ()


def shared_tails(nodes: Sequence[NodeRoom], num_tails: int) -> dict[str, int]:
    """Share tails among nodes in proportion to free pages, by largest remainder; the sum is ``num_tails``."""
    total = sum(node.num_free_pages for node in nodes)
    if total == 0:
        return {node.node_id: 0 for node in nodes}
    exact = {node.node_id: num_tails * node.num_free_pages / total for node in nodes}
    shares = {node_id: int(share) for node_id, share in exact.items()}
    short = num_tails - sum(shares.values())
    by_remainder = sorted(exact, key=lambda node_id: shares[node_id] - exact[node_id])
    for node_id in by_remainder[:short]:
        shares[node_id] += 1
    return shares


def rebalance(
    nodes: Sequence[NodeRoom], tails: Mapping[int, str], *, joined: frozenset[str]
) -> list[TailMove]:
    """Decide which running sequences' tails move when a snapshot is adopted (paper section 4.2).

    Tails on nodes that are not active any more all move. Of the others only as many move as a joined node
    lacks to its share; without a joined node none does, so that an unchanged pool stays as it is.

    Args:
        nodes: the active nodes; ``num_tails`` is not read.
        tails: sequence id -> node of its tail.
        joined: active nodes that were not in the previous snapshot.
    """
    if not nodes:
        return []
    shares = shared_tails(nodes, len(tails))
    held: dict[str, list[int]] = {node.node_id: [] for node in nodes}
    homeless: list[int] = []
    for sequence_id, node_id in tails.items():
        held.get(node_id, homeless).append(sequence_id)
    moves: list[TailMove] = []

    def lacking(candidates: Sequence[str]) -> str:
        return max(candidates, key=lambda node_id: shares[node_id] - len(held[node_id]))

    for sequence_id in homeless:
        target = lacking(list(held))
        held[target].append(sequence_id)
        moves.append(TailMove(sequence_id=sequence_id, node_id=target, reason=MoveReason.NODE_NOT_ACTIVE))
    newcomers = [node_id for node_id in held if node_id in joined]
    settled = [node_id for node_id in held if node_id not in joined]
    while newcomers and settled:
        target = lacking(newcomers)
        source = min(settled, key=lambda node_id: shares[node_id] - len(held[node_id]))
        if len(held[target]) >= shares[target] or len(held[source]) <= shares[source]:
            break
        sequence_id = held[source].pop()
        held[target].append(sequence_id)
        moves.append(TailMove(sequence_id=sequence_id, node_id=target, reason=MoveReason.SHARE))
    return moves
