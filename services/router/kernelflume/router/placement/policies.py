"""The rules by which a node is chosen. Each gets at least one candidate and names one of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from kernelflume.core.request_class import ClassBounds, RequestClass
from kernelflume.router.placement.decision import Placement, PlacementReason
from kernelflume.router.placement.nodes import (
    is_overloaded,
    least_pending,
    least_product,
    least_requests,
    least_tokens,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kernelflume.router.placement.nodes import Candidates, WeightNodeView
    from kernelflume.router.placement.request import PlacementRequest

    Choice = tuple[WeightNodeView, PlacementReason]


class PolicyName(StrEnum):
    """The rules, by the names that settings give them."""

    STICKY = "sticky"
    LEAST_LOADED = "least_loaded"
    LMETRIC = "lmetric"
    PS_ALWAYS = "ps_always"
    CACHE_GATE = "cache_gate"
    UNIFIED = "unified"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyParameters:
    """Numbers that the rules go by."""

    overload_factor: float = 2.0
    """A session leaves its node when that has more than so many times the average's ongoing tokens."""
    gate_share: float = 0.3
    """`cache_gate` divides heavy requests of which at least this share is cached."""
    affinity_share: float = 0.5
    """`unified` keeps a session on its node when more than this share of the prompt is cached."""
    bounds: ClassBounds = field(default_factory=ClassBounds)


def choose_sticky(
    request: PlacementRequest, nodes: Sequence[WeightNodeView], parameters: PolicyParameters
) -> Choice:
    """Keep a session on its node unless that is overloaded; else the fewest ongoing tokens."""
    pinned = _pinned(request, nodes)
    if pinned is not None and not is_overloaded(pinned, nodes, parameters.overload_factor):
        return pinned, PlacementReason.AFFINITY
    if pinned is not None:
        reason = PlacementReason.OVERLOADED
    elif request.pinned is not None:
        reason = PlacementReason.PINNED_AWAY
    else:
        reason = PlacementReason.NEW_SESSION
    return least_tokens(nodes), reason


def choose_least_loaded(
    request: PlacementRequest,  # noqa: ARG001 - all rules are called alike
    nodes: Sequence[WeightNodeView],
    parameters: PolicyParameters,  # noqa: ARG001
) -> Choice:
    """Take the node with the fewest requests, then the fewest tokens."""
    best = least_requests(nodes)
    num_equal = sum(node.num_requests == best.num_requests for node in nodes)
    return best, PlacementReason.LEAST_TOKENS if num_equal > 1 else PlacementReason.LEAST_REQUESTS


def choose_lmetric(
    request: PlacementRequest,
    nodes: Sequence[WeightNodeView],
    parameters: PolicyParameters,  # noqa: ARG001 - all rules are called alike
) -> Choice:
    """Take the node with the least product of prompt tokens to compute and requests."""
    return least_product(nodes, request.num_new_tokens), PlacementReason.LEAST_PRODUCT


def choose_unified(
    request: PlacementRequest, nodes: Sequence[WeightNodeView], parameters: PolicyParameters
) -> Choice:
    """Keep a session on its node where most is cached and the node is not overloaded; else ``lmetric``."""
    if request.cached_share > parameters.affinity_share:
        pinned = _pinned(request, nodes)
        if pinned is not None and not is_overloaded(pinned, nodes, parameters.overload_factor):
            return pinned, PlacementReason.AFFINITY
    return choose_lmetric(request, nodes, parameters)


CHOICES: Mapping[
    PolicyName, Callable[[PlacementRequest, Sequence[WeightNodeView], PolicyParameters], Choice]
] = {
    PolicyName.STICKY: choose_sticky,
    PolicyName.LEAST_LOADED: choose_least_loaded,
    PolicyName.LMETRIC: choose_lmetric,
    PolicyName.UNIFIED: choose_unified,
    # Of requests that they do not divide, and of the nodes where divided ones go on.
    PolicyName.PS_ALWAYS: choose_sticky,
    PolicyName.CACHE_GATE: choose_sticky,
}


def reason_to_divide(
    policy: PolicyName, request: PlacementRequest, parameters: PolicyParameters
) -> PlacementReason | None:
    """Return why a policy has a request's prompt computed apart; None where it does not."""
    if parameters.bounds.of(request.num_new_tokens) is not RequestClass.HEAVY:
        return None
    if policy is PolicyName.PS_ALWAYS:
        return PlacementReason.HEAVY_PREFILL
    if policy is PolicyName.CACHE_GATE and request.cached_share >= parameters.gate_share:
        return PlacementReason.CACHED_PREFILL
    return None


def divide(
    policy: PolicyName,
    request: PlacementRequest,
    candidates: Candidates,
    parameters: PolicyParameters,
    reason: PlacementReason,
) -> Placement | None:
    """Place the prompt and the rest on two nodes; None where there are no two for that.

    The rest goes where the policy says. The prompt goes to the node that has the fewest prompt tokens to
    compute, which is never the other one.
    """
    if not candidates.decode:
        return None
    decode, _ = CHOICES[policy](request, candidates.decode, parameters)
    others = [node for node in candidates.prefill if node.address != decode.address]
    if not others:
        return None
    return Placement(least_pending(others).address, decode.address, reason)


def _pinned(request: PlacementRequest, nodes: Sequence[WeightNodeView]) -> WeightNodeView | None:
    return next((node for node in nodes if node.address == request.pinned), None)
