"""How the tokens of ragged rows lie over attention nodes, step by step; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

MOVE_AT = 3
"""Step from which tails lie elsewhere: the change of routing in the middle of a run."""

Kind = Literal["uneven", "join"]


class LaneRows(NamedTuple):
    """One node's share of a lane's step: row numbers within the lane, int64 each."""

    asks: np.ndarray
    """Rows whose queries go there."""
    stores: np.ndarray
    """Rows whose new token is stored there."""


@dataclass(frozen=True, slots=True)
class Split:
    """Which node holds how much of each row, and which one stores the token of each step."""

    kind: Kind
    held: np.ndarray
    """int64 [nodes, rows]: tokens before the first step; the first node has a row's first ones, and so on."""
    tails: np.ndarray
    """int64 [steps, rows]: the node that stores the row's token."""

    @classmethod
    def make(cls, kind: Kind, contexts: Sequence[int], *, num_nodes: int, num_steps: int) -> Split:
        """Share out rows of ``contexts`` tokens.

        With ``uneven`` node n holds n + 1 shares of most rows, every fourth row lies on one node alone, and
        each tail moves on to the next node. With ``join`` the last node holds nothing until every second tail
        moves there.
        """
        rows = np.arange(len(contexts))
        holders = num_nodes - (kind == "join")
        weights = np.arange(1, holders + 1)
        held = np.zeros((num_nodes, len(rows)), np.int64)
        held[:holders] = np.asarray(contexts) * weights[:, None] // weights.sum()
        held[holders - 1] += np.asarray(contexts) - held.sum(0)
        alone = rows[rows % 4 == 3]
        held[:, alone] = 0
        held[alone % holders, alone] = np.asarray(contexts)[alone]
        first = np.where(rows % 4 == 3, rows % holders, holders - 1)
        moved = np.where(rows % 2 == 0, num_nodes - 1, first) if kind == "join" else (first + 1) % num_nodes
        tails = np.array([first if step < MOVE_AT else moved for step in range(num_steps)], np.int64)
        return cls(kind, held, tails)

    @property
    def num_nodes(self) -> int:
        """Nodes in all."""
        return len(self.held)

    def starts(self, node: int) -> np.ndarray:
        """Return where a node's tokens of each row begin: int64 [rows]."""
        return np.asarray(self.held[:node].sum(0), np.int64)

    def held_before(self, step: int) -> np.ndarray:
        """Return the tokens held before a step: int64 [nodes, rows]."""
        held = self.held.copy()
        for tails in self.tails[:step]:
            held[tails, np.arange(held.shape[1])] += 1
        return held

    def lane(self, step: int, node: int, rows: range, *, tail_attends: bool) -> LaneRows:
        """Return a node's share of a lane that has consecutive ``rows``.

        With ``tail_attends`` the node that stores a row's token attends to it too, so that it is asked.
        """
        held = self.held_before(step)[node, rows.start : rows.stop]
        stores = self.tails[step, rows.start : rows.stop] == node
        return LaneRows(np.flatnonzero((held > 0) | (stores & tail_attends)), np.flatnonzero(stores))


def ragged_contexts(num_rows: int, most: int, *, page_tokens: int, seed: int = 3) -> tuple[int, ...]:
    """Return a length for each row: some at the borders of pages, the rest anywhere up to ``most``."""
    rng = np.random.default_rng(seed)
    special = (most, 1, page_tokens, page_tokens + 1, page_tokens - 1)
    drawn = rng.integers(most // 4, most, num_rows).tolist()
    return tuple(min(length, most) for length in (*special, *drawn)[:num_rows])
