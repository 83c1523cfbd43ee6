"""What holds of every placement, whatever the nodes, the request and the policy."""

from __future__ import annotations

from dataclasses import replace
from random import Random  # noqa: TC003 - hypothesis reads the annotations

from hypothesis import given
from hypothesis import strategies as st

from kernelflume.core.roles import WeightNodeRole
from kernelflume.router.placement.decision import PlacementReason
from kernelflume.router.placement.nodes import WeightNodeView
from kernelflume.router.placement.place import place
from kernelflume.router.placement.policies import PolicyName, PolicyParameters
from kernelflume.router.placement.request import PlacementRequest

NAMES = "abcdef"
COUNTS = st.integers(0, 50_000)
NODES = st.lists(
    st.builds(
        WeightNodeView,
        address=st.sampled_from(NAMES),
        role=st.sampled_from(WeightNodeRole),
        serving=st.booleans(),
        num_requests=st.integers(0, 20),
        num_tokens=COUNTS,
        num_pending_tokens=COUNTS,
        queue_full=st.booleans(),
    ),
    unique_by=lambda node: node.address,
)
REQUESTS = st.builds(
    PlacementRequest,
    num_prompt_tokens=st.integers(1, 100_000),
    num_cached_tokens=st.integers(0, 100_000),
    pinned=st.none() | st.sampled_from(NAMES),
)
FAILED = st.sets(st.sampled_from(NAMES), max_size=3)
POLICIES = st.sampled_from(PolicyName)
PARAMETERS = st.builds(PolicyParameters, overload_factor=st.floats(1, 4), gate_share=st.floats(0, 1))


@given(POLICIES, REQUESTS, NODES, FAILED, PARAMETERS)
def test_a_node_that_serves_and_has_not_failed_is_found_whenever_there_is_one(
    policy: PolicyName,
    request: PlacementRequest,
    nodes: list[WeightNodeView],
    failed: set[str],
    parameters: PolicyParameters,
) -> None:
    placement = place(policy, request, nodes, failed=failed, parameters=parameters)
    usable = {node.address: node for node in nodes if node.serving and node.address not in failed}
    if not usable:
        assert (placement.prefill, placement.decode) == (None, None)
        assert placement.reason in {PlacementReason.NONE_SERVING, PlacementReason.ALL_FAILED}
        return
    assert placement.prefill in usable
    assert placement.decode in usable
    # Full queues are for when there is nothing else.
    if any(not node.queue_full for node in usable.values()):
        assert not usable[placement.prefill].queue_full
        assert not usable[placement.decode].queue_full
    else:
        assert placement.reason is PlacementReason.ALL_FULL
    if placement.is_divided:
        assert usable[placement.prefill].role.takes_prompts
        assert usable[placement.decode].role.takes_decoding
    elif placement.reason not in {
        PlacementReason.ROLES_UNMET,
        PlacementReason.ONLY_CANDIDATE,
        PlacementReason.ALL_FULL,
    }:
        assert usable[placement.prefill].role is WeightNodeRole.BOTH


@given(POLICIES, REQUESTS, NODES, st.randoms())
def test_the_order_of_the_nodes_does_not_matter(
    policy: PolicyName, request: PlacementRequest, nodes: list[WeightNodeView], chance: Random
) -> None:
    mixed = list(nodes)
    chance.shuffle(mixed)
    assert place(policy, request, mixed) == place(policy, request, nodes)


@given(REQUESTS, NODES, st.floats(1, 4))
def test_a_session_stays_exactly_while_its_node_is_not_overloaded(
    request: PlacementRequest, nodes: list[WeightNodeView], factor: float
) -> None:
    nodes = [replace(node, role=WeightNodeRole.BOTH, queue_full=False, serving=True) for node in nodes]
    pinned = next((node for node in nodes if node.address == request.pinned), None)
    if pinned is None or len(nodes) < 2:
        return
    parameters = PolicyParameters(overload_factor=factor)
    stays = pinned.num_tokens <= factor * sum(node.num_tokens for node in nodes) / len(nodes)
    placement = place(PolicyName.STICKY, request, nodes, parameters=parameters)
    assert (placement.reason is PlacementReason.AFFINITY) is stays
    if not stays:
        assert placement.reason is PlacementReason.OVERLOADED
        assert placement.prefill != pinned.address
