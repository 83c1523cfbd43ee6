"""How heavy a request is: by the tokens that must be computed for it, which says more than its length."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

WARM_TOKENS = 5_000
"""Most new tokens of a warm request, where nothing else is said."""
HEAVY_TOKENS = 20_000
"""Most new tokens of one that is not heavy, where nothing else is said."""


class RequestClass(StrEnum):
    """Size of a request by its new tokens, those that no cache holds."""

    WARM = "warm"
    MEDIUM = "medium"
    HEAVY = "heavy"


@dataclass(frozen=True, slots=True)
class ClassBounds:
    """Where one class ends and the next begins."""

    warm_tokens: float = WARM_TOKENS
    """A request with at most so many new tokens is warm."""
    heavy_tokens: float = HEAVY_TOKENS
    """One with more than so many is heavy; those between are medium."""

    def of(self, num_new_tokens: int) -> RequestClass:
        """Return the class of a request with so many new tokens."""
        if num_new_tokens <= self.warm_tokens:
            return RequestClass.WARM
        return RequestClass.HEAVY if num_new_tokens > self.heavy_tokens else RequestClass.MEDIUM
