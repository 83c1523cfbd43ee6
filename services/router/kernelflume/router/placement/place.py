"""The decision: which weight node computes a request's prompt, and which one generates the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelflume.router.placement.decision import Placement, PlacementReason
from kernelflume.router.placement.nodes import Candidates, least_requests
from kernelflume.router.placement.policies import CHOICES, PolicyParameters, divide, reason_to_divide

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from kernelflume.router.placement.nodes import WeightNodeView
    from kernelflume.router.placement.policies import PolicyName
    from kernelflume.router.placement.request import PlacementRequest

DEFAULT_PARAMETERS = PolicyParameters()


def place(
    policy: PolicyName,
    request: PlacementRequest,
    nodes: Sequence[WeightNodeView],
    *,
    failed: Collection[str] = (),
    parameters: PolicyParameters = DEFAULT_PARAMETERS,
) -> Placement:
    """Decide.

    Args:
        policy: the rule to go by.
        request: what is to run.
        nodes: all known weight nodes.
        failed: addresses that failed or refused this request already.
        parameters: numbers of the rule.
    """
    candidates = Candidates.among(nodes, failed)
    if candidates is None:
        reason = PlacementReason.ALL_FAILED if failed else PlacementReason.NONE_SERVING
        return Placement(None, None, reason)
    if candidates.queues_full:
        whole = candidates.whole or candidates.all
        return Placement.whole(least_requests(whole).address, PlacementReason.ALL_FULL)
    if len(candidates.all) == 1:
        return Placement.whole(candidates.all[0].address, PlacementReason.ONLY_CANDIDATE)
    reason_apart = reason_to_divide(policy, request, parameters)
    if reason_apart is None and not candidates.whole:
        reason_apart = PlacementReason.DIVIDED_BY_ROLES
    if reason_apart is not None:
        divided = divide(policy, request, candidates, parameters, reason_apart)
        if divided is not None:
            return divided
    beside = _beside(request, candidates.whole)
    if beside is not None:
        return Placement.whole(beside.address, PlacementReason.SAME_PROMPT)
    if candidates.whole:
        node, why = CHOICES[policy](request, candidates.whole, parameters)
        if len(candidates.whole) == 1 and why is not PlacementReason.AFFINITY:
            why = PlacementReason.ONLY_CANDIDATE
        return Placement.whole(node.address, why)
    node, _ = CHOICES[policy](request, candidates.all, parameters)
    return Placement.whole(node.address, PlacementReason.ROLES_UNMET)


def _beside(request: PlacementRequest, nodes: Sequence[WeightNodeView]) -> WeightNodeView | None:
    """Return the node where a request's prompt is computed once for it and others, if it would run there."""
    if request.beside is None or not request.is_worth_sharing:
        return None
    return next((node for node in nodes if node.address == request.beside and node.would_run), None)
