"""Token ranges and the route of one sequence (paper section 4.1).

A route is the ordered list of ranges that cover tokens [0, n) exactly once. All but the last are sealed
(historical); the last is the tail, the only one that grows. Everything here is a value: an edit returns a
new route.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from kernelflume.core.errors import LifecycleError


@dataclass(frozen=True, slots=True, order=True)
class TokenRange:
    """Half-open interval [start, end) of token positions."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise LifecycleError(f"[{self.start}, {self.end}) is no token range")

    @property
    def num_tokens(self) -> int:
        """Number of token positions inside."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class OwnedRange:
    """A token range and the attention node that holds its keys and values."""

    node_id: str
    tokens: TokenRange


@dataclass(frozen=True, slots=True)
class SequenceRoute:
    """Where the keys and values of one sequence are; the last range is the tail."""

    ranges: tuple[OwnedRange, ...] = ()

    def __post_init__(self) -> None:
        position = 0
        for index, owned in enumerate(self.ranges):
            if owned.tokens.start != position:
                raise LifecycleError(f"range {index} starts at {owned.tokens.start}, not at {position}")
            if owned.tokens.num_tokens == 0 and index != len(self.ranges) - 1:
                raise LifecycleError(f"sealed range {index} is empty")
            position = owned.tokens.end

    @property
    def num_tokens(self) -> int:
        """Tokens covered: positions [0, num_tokens)."""
        return self.ranges[-1].tokens.end if self.ranges else 0

    @property
    def tail_node_id(self) -> str | None:
        """Owner of the open range, or None before the first token is placed."""
        return self.ranges[-1].node_id if self.ranges else None

    @property
    def node_ids(self) -> tuple[str, ...]:
        """Every owner, each once, in order of first range."""
        return tuple(dict.fromkeys(owned.node_id for owned in self.ranges))

    def num_tokens_on(self, node_id: str) -> int:
        """Tokens that ``node_id`` holds of this sequence."""
        return sum(owned.tokens.num_tokens for owned in self.ranges if owned.node_id == node_id)

    def extended(self, num_tokens: int) -> Self:
        """Grow the tail by ``num_tokens``.

        Raises:
            LifecycleError: there is no tail yet, or the number is negative.
        """
        if not self.ranges or num_tokens < 0:
            raise LifecycleError("only a route with a tail can be extended, and only forward")
        tail = self.ranges[-1]
        grown = OwnedRange(tail.node_id, TokenRange(tail.tokens.start, tail.tokens.end + num_tokens))
        return type(self)((*self.ranges[:-1], grown))

    def with_tail(self, node_id: str) -> Self:
        """Seal the present tail and open a new one on ``node_id`` (the same node may be named again).

        An empty tail is replaced, so that no sealed range is ever empty.
        """
        kept = self.ranges
        if kept and kept[-1].tokens.num_tokens == 0:
            kept = kept[:-1]
        position = kept[-1].tokens.end if kept else 0
        return replace(self, ranges=(*kept, OwnedRange(node_id, TokenRange(position, position))))
