"""A request as placement sees it: how much of it is new, and where its session was."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RequestClass(StrEnum):
    """Size of a request by the tokens that must be computed for it, which says more than its length."""

    WARM = "warm"
    MEDIUM = "medium"
    HEAVY = "heavy"


@dataclass(frozen=True, slots=True)
class ClassBounds:
    """Where one class ends and the next begins."""

    warm_tokens: int = 5_000
    """A request with at most so many new tokens is warm."""
    heavy_tokens: int = 20_000
    """One with more than so many is heavy; those between are medium."""

    def of(self, num_new_tokens: int) -> RequestClass:
        """Return the class of a request with so many new tokens."""
        if num_new_tokens <= self.warm_tokens:
            return RequestClass.WARM
        return RequestClass.HEAVY if num_new_tokens > self.heavy_tokens else RequestClass.MEDIUM


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """What a decision needs to know of a request."""

    num_prompt_tokens: int
    """With the output so far, of one that goes on elsewhere."""
    num_cached_tokens: int = 0
    """Of these, those whose keys and values are in the pool already, as far as is known."""
    pinned: str | None = None
    """Address of the node that its session is pinned to."""

    @property
    def num_new_tokens(self) -> int:
        """Tokens to compute before the first new one; at least 1."""
        return max(1, self.num_prompt_tokens - self.num_cached_tokens)

    @property
    def cached_share(self) -> float:
        """Share of the prompt that is in the pool already, 0 to 1."""
        if self.num_prompt_tokens <= 0:
            return 0.0
        return min(1.0, self.num_cached_tokens / self.num_prompt_tokens)
