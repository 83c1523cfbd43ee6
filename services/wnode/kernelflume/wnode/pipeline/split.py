"""Which rows of a decode step each microbatch takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.wnode.batch import Chunk


def split(chunks: Sequence[Chunk], num_parts: int) -> list[list[Chunk]]:
    """Deal decode rows out so that parts are alike: in rows, in tokens, and on every attention node.

    Rows of one node are dealt out among all parts, for parts on different nodes would leave each node idle
    while it is another's turn. All sequences grow alike, so the parts stay the same until one comes or goes.

    Returns:
        ``num_parts`` lists in the order of ``chunks``, whose lengths differ by at most 1; some are empty
        where there are fewer rows.
    """
    if num_parts == 1:
        return [list(chunks)]
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    order = sorted(range(len(chunks)), key=lambda row: _rank(chunks[row]))
    for place, row in enumerate(order):
        turn, index = divmod(place, num_parts)
        # There and back: whoever takes the longest of one turn takes the shortest of the next.
        parts[num_parts - 1 - index if turn % 2 else index].append(row)
    return [[chunks[row] for row in sorted(part)] for part in parts]


def _rank(chunk: Chunk) -> tuple[list[str], int]:
    return sorted(chunk.route.node_ids), -chunk.start
