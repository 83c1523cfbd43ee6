"""Lanes of a weight node, and the steps that are captured: what the setting ``microbatches`` means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from kernelflume.transport.lanes import graph_buckets

AUTO = "auto"
_AUTO_COUNTS = (1, 2)
"""Four never won where they were measured: each reads all weights again."""


@dataclass(frozen=True, slots=True)
class LanePlan:
    """Fixed at the start: steps may differ in their number of microbatches, what is captured stays."""

    num_lanes: int
    max_rows: int
    """Most rows of a lane."""
    max_step_rows: int
    """Most rows of a step."""
    fixed_count: int | None
    """Microbatches of every step, or None where each step has as many as are fastest."""
    steps: tuple[tuple[int, int], ...]
    """(microbatches, rows of each) of every step that is captured."""

    @classmethod
    def of(cls, microbatches: str, max_step_rows: int) -> Self:
        """Plan for steps of up to ``max_step_rows`` rows in ``microbatches``, a number or ``auto``.

        With ``auto`` the first lane can hold all rows of a step, and of the others each one's share is used.
        """
        if microbatches == AUTO:
            counts = tuple(count for count in _AUTO_COUNTS if count <= max_step_rows)
            fixed_count, max_rows = None, max_step_rows
        else:
            counts = (int(microbatches),)
            fixed_count, max_rows = counts[0], -(-max_step_rows // counts[0])
        buckets = graph_buckets(max_rows)
        steps = []
        for count in counts:
            share = -(-max_step_rows // count)
            most = min(rows for rows in buckets if rows >= share)
            steps += [(count, rows) for rows in buckets if rows <= most]
        return cls(counts[-1], max_rows, max_step_rows, fixed_count, tuple(steps))
