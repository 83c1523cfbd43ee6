"""How much a decode step asks of the attention nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.wnode.batch import Chunk


@dataclass(frozen=True, slots=True)
class Load:
    """The two figures that the stages of a decode step depend on."""

    num_rows: int
    num_tokens: int
    """Tokens whose keys and values the attention node that reads the most reads in a layer."""

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> Self:
        """Return the load of a step of decode rows."""
        held: Counter[str] = Counter()
        for chunk in chunks:
            for owned in chunk.route.ranges:
                held[owned.node_id] += owned.tokens.num_tokens
        return cls(len(chunks), max(held.values(), default=0))

    def is_like(self, other: Load, share: float) -> bool:
        """True when neither figure differs by more than ``share`` of the other's."""
        return (
            abs(self.num_rows - other.num_rows) <= share * other.num_rows
            and abs(self.num_tokens - other.num_tokens) <= share * other.num_tokens
        )
