"""Which node is to share which blocks of a context. Pure.

Several nodes may hold a block: what lies between two nodes costs each later step an exchange more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kernelflume.core.ranges import OwnedRange, SequenceRoute, TokenRange

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive blocks [start, end) of a context that one node shares."""

    node_id: str
    start: int
    end: int

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        return self.end - self.start


def choose_runs(found: Mapping[str, np.ndarray]) -> tuple[Run, ...]:
    """Cover the longest beginning that nodes hold together, by as few runs as possible.

    Args:
        found: node id -> [num_blocks] bool, whether it holds each block; of nodes that serve as well as each
            other the first is taken.

    Returns:
        Runs that follow each other from block 0 on; none where nobody holds block 0.
    """
    runs: list[Run] = []
    position = 0
    while True:
        # Going on as far as any node does leaves the least to others.
        end, node_id = position, ""
        for candidate, is_here in found.items():
            reach = _reach(is_here, position)
            if reach > end:
                end, node_id = reach, candidate
        if end == position:
            return tuple(runs)
        runs.append(Run(node_id, position, end))
        position = end


def by_node(runs: Sequence[Run]) -> dict[str, tuple[Run, ...]]:
    """Return each node's runs, in order."""
    nodes: dict[str, tuple[Run, ...]] = {}
    for run in runs:
        nodes[run.node_id] = (*nodes.get(run.node_id, ()), run)
    return nodes


def num_beginning(runs: Sequence[Run], num_held: Mapping[str, int]) -> int:
    """Return how many blocks from the first on are held, where each node holds so many of its first."""
    left = dict(num_held)
    for run in runs:
        held = min(run.num_blocks, left.get(run.node_id, 0))
        if held < run.num_blocks:
            return run.start + held
        left[run.node_id] -= held
    return runs[-1].end if runs else 0


def cut(runs: Sequence[Run], num_blocks: int) -> tuple[Run, ...]:
    """Return the runs up to a number of blocks."""
    return tuple(replace(run, end=min(run.end, num_blocks)) for run in runs if run.start < num_blocks)


def route_of(runs: Sequence[Run], page_tokens: int, *, num_tokens: int) -> SequenceRoute:
    """Return the route of a context of ``num_tokens`` whose blocks are held this way."""
    return SequenceRoute(
        tuple(
            OwnedRange(
                run.node_id, TokenRange(run.start * page_tokens, min(run.end * page_tokens, num_tokens))
            )
            for run in runs
        )
    )


def runs_of(route: SequenceRoute, page_tokens: int) -> tuple[Run, ...]:
    """Return the runs of a route, none where its ranges do not begin with blocks."""
    if any(owned.tokens.start % page_tokens for owned in route.ranges):
        return ()
    return tuple(
        Run(owned.node_id, owned.tokens.start // page_tokens, -(-owned.tokens.end // page_tokens))
        for owned in route.ranges
        if owned.tokens.num_tokens
    )


def _reach(is_here: np.ndarray, position: int) -> int:
    """Return where the blocks end that are held from ``position`` on."""
    missing = np.flatnonzero(~is_here[position:])
    return position + int(missing[0]) if len(missing) else len(is_here)
