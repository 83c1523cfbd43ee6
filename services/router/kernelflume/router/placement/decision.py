"""Decisions about where a request runs or moves to, and their reasons."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PlacementReason(StrEnum):
    """Why a decision came out as it did; also a label of metrics and an attribute of traces."""

    ONLY_CANDIDATE = "only_candidate"
    """No other node could take it."""
    AFFINITY = "affinity"
    """Its session is pinned there."""
    NEW_SESSION = "new_session"
    """It has no session that is known, so it got the node with the fewest ongoing tokens."""
    OVERLOADED = "overloaded"
    """The node that its session is pinned to has too many ongoing tokens."""
    PINNED_AWAY = "pinned_away"
    """The node that its session is pinned to cannot take it."""
    LEAST_REQUESTS = "least_requests"
    LEAST_TOKENS = "least_tokens"
    """As many requests as another node, and fewer tokens."""
    LEAST_PRODUCT = "least_product"
    """Prompt tokens to compute times requests are fewest there."""
    HEAVY_PREFILL = "heavy_prefill"
    """Heavy, so its prompt is computed apart."""
    CACHED_PREFILL = "cached_prefill"
    """Heavy, and enough of it is cached: its prompt is computed apart."""
    DIVIDED_BY_ROLES = "divided_by_roles"
    """No node takes whole requests: one computes the prompt, another goes on."""
    ROLES_UNMET = "roles_unmet"
    """The roles of the nodes that serve leave a part of it to nobody: one of them gets all."""
    SAME_PROMPT = "same_prompt"
    """Another choice of the request has the same prompt computed there."""
    NONE_SERVING = "none_serving"
    ALL_FULL = "all_full"
    """Every queue is full; the least loaded is tried."""
    ALL_FAILED = "all_failed"


class MoveReason(StrEnum):
    """Why a choice moves to another weight node; also a label of metrics and an attribute of traces."""

    DIVIDED = "divided"
    """Its placement gives the prompt to one node and the rest to another."""
    ASKED_AWAY = "asked_away"
    """Its node asked for it: it is to end, or a person wants it so."""
    MORE_REQUESTS = "more_requests"
    """For balance: its node has more requests than the other."""
    MORE_PROMPT_TOKENS = "more_prompt_tokens"
    """For balance: not for its requests, but for the prompt tokens that its node has to compute."""

    @property
    def is_for_balance(self) -> bool:
        """True where nothing but the nodes' load asks for the move."""
        return self in {MoveReason.MORE_REQUESTS, MoveReason.MORE_PROMPT_TOKENS}


@dataclass(frozen=True, slots=True)
class Placement:
    """The choice, or no addresses and why there is none."""

    prefill: str | None
    """Address of the node that computes the prompt and generates the first token."""
    decode: str | None
    """Address of the node that generates the rest; the same where the request is not divided."""
    reason: PlacementReason

    @property
    def is_divided(self) -> bool:
        """True when one node computes the prompt and another goes on."""
        return self.prefill != self.decode

    @classmethod
    def whole(cls, address: str, reason: PlacementReason) -> Placement:
        """Place all of a request on one node."""
        return cls(address, address, reason)
