"""A request as placement sees it: how much of it is new, and where its session was."""

from __future__ import annotations

from dataclasses import dataclass

from kernelflume.core.blocks import WORTH_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """What a decision needs to know of a request."""

    num_prompt_tokens: int
    """With the output so far, of one that goes on elsewhere."""
    num_cached_tokens: int = 0
    """Of these, those whose keys and values are in the pool already, as far as is known."""
    pinned: str | None = None
    """Address of the node that its session is pinned to."""
    beside: str | None = None
    """Address of the node that is about to compute the same prompt, for another choice of the request."""

    @property
    def num_new_tokens(self) -> int:
        """Tokens to compute before the first new one; at least 1."""
        return max(1, self.num_prompt_tokens - self.num_cached_tokens)

    @property
    def is_worth_sharing(self) -> bool:
        """True when so much is to be computed that a weight node has its choices wait for the first one's."""
        return self.num_new_tokens >= WORTH_TOKENS

    @property
    def cached_share(self) -> float:
        """Share of the prompt that is in the pool already, 0 to 1."""
        if self.num_prompt_tokens <= 0:
            return 0.0
        return min(1.0, self.num_cached_tokens / self.num_prompt_tokens)
