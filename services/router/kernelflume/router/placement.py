"""Which weight node runs a request: a pure decision over what is known of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


class PlacementReason(StrEnum):
    """Why a decision came out as it did."""

    ONLY_CANDIDATE = "only_candidate"
    LEAST_REQUESTS = "least_requests"
    LEAST_TOKENS = "least_tokens"
    NONE_SERVING = "none_serving"
    ALL_FULL = "all_full"
    ALL_FAILED = "all_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightNodeView:
    """One weight node as this router sees it."""

    address: str
    serving: bool
    num_requests: int
    """Running and waiting there: as it last reported, plus what this router has sent since."""
    num_tokens: int
    """Context tokens of its running sequences, as it last reported."""
    queue_full: bool
    """It last reported a full queue."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The choice, or None and why there is none."""

    address: str | None
    reason: PlacementReason


def place(nodes: Sequence[WeightNodeView], *, failed: Collection[str] = ()) -> Placement:
    """Choose the weight node with the fewest requests, then the fewest tokens, then the first address.

    Args:
        nodes: all known weight nodes.
        failed: addresses that this request was refused by already.
    """
    untried = [node for node in nodes if node.serving and node.address not in failed]
    if not untried:
        return Placement(None, PlacementReason.ALL_FAILED if failed else PlacementReason.NONE_SERVING)
    open_nodes = [node for node in untried if not node.queue_full]
    # A report of a full queue may be old by now: the node itself refuses better than we can.
    candidates = open_nodes or untried
    best = min(candidates, key=lambda node: (node.num_requests, node.num_tokens, node.address))
    if not open_nodes:
        return Placement(best.address, PlacementReason.ALL_FULL)
    if len(candidates) == 1:
        return Placement(best.address, PlacementReason.ONLY_CANDIDATE)
    num_equal = sum(node.num_requests == best.num_requests for node in candidates)
    reason = PlacementReason.LEAST_TOKENS if num_equal > 1 else PlacementReason.LEAST_REQUESTS
    return Placement(best.address, reason)
