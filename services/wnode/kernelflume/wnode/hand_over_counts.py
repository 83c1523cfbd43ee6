"""What became of the sequences that a weight node handed over, and of those that it took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class HandOverCounts:
    """Sums since the start. Owned by the step loop; reports carry copies."""

    num_held: int = 0
    """Sequences that stood still for another weight node."""
    num_gone_on: int = 0
    """Those that went on here after all."""
    num_expired: int = 0
    """Those that nobody asked for in time."""
    num_taken: int = 0
    """Sequences that other weight nodes handed to this one, and that ran."""
    num_recomputed_tokens: int = 0
    """Tokens of those whose keys and values were there no more and had to be computed again."""
