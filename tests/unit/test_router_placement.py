"""Where requests run: what each policy promises."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelflume.core.request_class import ClassBounds, RequestClass
from kernelflume.core.roles import WeightNodeRole
from kernelflume.router.placement.decision import Placement, PlacementReason
from kernelflume.router.placement.nodes import WeightNodeView
from kernelflume.router.placement.place import place
from kernelflume.router.placement.policies import PolicyName, PolicyParameters
from kernelflume.router.placement.request import PlacementRequest

BOTH, PREFILL, DECODE = WeightNodeRole.BOTH, WeightNodeRole.PREFILL, WeightNodeRole.DECODE
HEAVY = PlacementRequest(num_prompt_tokens=30_000)
WARM = PlacementRequest(num_prompt_tokens=100)
WHOLE = [policy for policy in PolicyName if policy not in {PolicyName.PS_ALWAYS, PolicyName.CACHE_GATE}]


def node(
    address: str,
    role: WeightNodeRole = BOTH,
    *,
    requests: int = 0,
    tokens: int = 0,
    pending: int = 0,
    serving: bool = True,
    full: bool = False,
    max_num_seqs: int = 32,
) -> WeightNodeView:
    return WeightNodeView(
        address=address,
        role=role,
        serving=serving,
        num_requests=requests,
        num_tokens=tokens,
        num_pending_tokens=pending,
        queue_full=full,
        max_num_seqs=max_num_seqs,
    )


def request(num_prompt: int, num_cached: int = 0, pinned: str | None = None) -> PlacementRequest:
    return PlacementRequest(num_prompt_tokens=num_prompt, num_cached_tokens=num_cached, pinned=pinned)


# --- all policies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", PolicyName)
def test_the_only_node_that_serves_is_taken(policy: PolicyName) -> None:
    nodes = [node("a", serving=False), node("b", DECODE, requests=9)]
    assert place(policy, HEAVY, nodes) == Placement.whole("b", PlacementReason.ONLY_CANDIDATE)


@pytest.mark.parametrize("policy", PolicyName)
def test_a_full_queue_is_avoided_but_tried_when_all_are_full(policy: PolicyName) -> None:
    assert place(policy, WARM, [node("a", full=True), node("b", requests=50)]).prefill == "b"
    full = [node("a", requests=9, full=True), node("b", requests=8, full=True)]
    assert place(policy, WARM, full) == Placement.whole("b", PlacementReason.ALL_FULL)


@pytest.mark.parametrize("policy", PolicyName)
def test_nodes_that_failed_are_not_tried_again(policy: PolicyName) -> None:
    nodes = [node("a"), node("b", requests=5)]
    pinned = request(100, pinned="a")
    assert place(policy, pinned, nodes, failed={"a"}).prefill == "b"
    assert place(policy, pinned, nodes, failed={"a", "b"}) == Placement(
        None, None, PlacementReason.ALL_FAILED
    )


@pytest.mark.parametrize("policy", PolicyName)
def test_no_node_is_told_apart_from_all_failed(policy: PolicyName) -> None:
    none = Placement(None, None, PlacementReason.NONE_SERVING)
    assert place(policy, WARM, []) == none
    assert place(policy, WARM, [node("a", serving=False)]) == none


# --- choices of one prompt -----------------------------------------------------------------------------

CHOICE = PlacementRequest(num_prompt_tokens=300, num_cached_tokens=100, beside="a")


@pytest.mark.parametrize("policy", PolicyName)
def test_choices_of_a_prompt_stay_together_while_they_run_there_at_once(policy: PolicyName) -> None:
    busy, idle = node("a", requests=31, tokens=9_000, pending=900), node("b")
    assert place(policy, CHOICE, [busy, idle]) == Placement.whole("a", PlacementReason.SAME_PROMPT)
    assert place(policy, CHOICE, [replace(busy, num_requests=32), idle]).prefill == "b"


@pytest.mark.parametrize("policy", PolicyName)
@pytest.mark.parametrize(
    "first",
    [
        node("a", serving=False),
        node("a", full=True),
        node("a", DECODE, requests=1, tokens=9_000),
        node("a", requests=1, tokens=9_000, pending=900, max_num_seqs=0),
    ],
    ids=["gone", "full", "other role", "not known"],
)
def test_choices_part_where_the_first_ones_node_has_no_room(
    policy: PolicyName, first: WeightNodeView
) -> None:
    assert place(policy, CHOICE, [first, node("b")]).prefill == "b"


@pytest.mark.parametrize("policy", PolicyName)
def test_choices_part_where_little_is_to_be_computed(policy: PolicyName) -> None:
    nodes = [node("a", requests=1, tokens=9_000, pending=127), node("b")]
    assert place(policy, replace(CHOICE, num_cached_tokens=173), nodes).prefill == "b"
    assert place(policy, replace(CHOICE, num_cached_tokens=172), nodes).prefill == "a"


@pytest.mark.parametrize("policy", PolicyName)
def test_a_choice_whose_node_failed_goes_elsewhere(policy: PolicyName) -> None:
    assert place(policy, CHOICE, [node("a"), node("b"), node("c")], failed={"a"}).prefill in {"b", "c"}


# --- roles ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", PolicyName)
def test_whole_requests_keep_off_nodes_for_one_part(policy: PolicyName) -> None:
    nodes = [node("p", PREFILL), node("d", DECODE), node("x", requests=7), node("y", requests=8, tokens=1)]
    assert place(policy, WARM, nodes).prefill in {"x", "y"}
    assert place(policy, WARM, nodes[:3]) == Placement.whole("x", PlacementReason.ONLY_CANDIDATE)


@pytest.mark.parametrize("policy", PolicyName)
def test_without_a_node_for_whole_requests_each_is_divided(policy: PolicyName) -> None:
    nodes = [node("p", PREFILL, pending=5), node("q", PREFILL), node("d", DECODE)]
    assert place(policy, WARM, nodes) == Placement("q", "d", PlacementReason.DIVIDED_BY_ROLES)


@pytest.mark.parametrize("role", [PREFILL, DECODE])
@pytest.mark.parametrize("policy", PolicyName)
def test_nodes_of_one_part_take_all_where_nobody_takes_the_other(
    policy: PolicyName, role: WeightNodeRole
) -> None:
    nodes = [node("a", role, requests=1, tokens=50, pending=5), node("b", role)]
    assert place(policy, HEAVY, nodes) == Placement.whole("b", PlacementReason.ROLES_UNMET)


# --- least_loaded and lmetric --------------------------------------------------------------------------


def test_least_loaded_takes_fewest_requests_then_fewest_tokens_then_the_address() -> None:
    policy = PolicyName.LEAST_LOADED
    busy, idle = node("a", requests=3), node("b", requests=1, tokens=99)
    assert place(policy, WARM, [busy, idle]) == Placement.whole("b", PlacementReason.LEAST_REQUESTS)
    third = node("c", requests=1, tokens=5)
    assert place(policy, WARM, [idle, third]) == Placement.whole("c", PlacementReason.LEAST_TOKENS)
    assert place(policy, WARM, [node("z"), node("y")]).prefill == "y"
    assert place(policy, request(100, 90, pinned="a"), [busy, idle]).prefill == "b"


def test_lmetric_weighs_prompt_tokens_to_compute_by_requests() -> None:
    nodes = [node("a", requests=2, pending=1000), node("b", requests=8, pending=0)]
    # (1000 + 100) * 2 = 2200 against (0 + 100) * 8 = 800.
    small = Placement.whole("b", PlacementReason.LEAST_PRODUCT)
    assert place(PolicyName.LMETRIC, request(100), nodes) == small
    # (1000 + 5000) * 2 = 12000 against 5000 * 8 = 40000.
    assert place(PolicyName.LMETRIC, request(5000), nodes).prefill == "a"
    # What is cached is not computed.
    assert place(PolicyName.LMETRIC, request(5000, 4900), nodes).prefill == "b"
    idle = [node("a", pending=10), node("c"), node("b", tokens=5)]
    assert place(PolicyName.LMETRIC, WARM, idle).prefill == "c"


# --- sticky and unified --------------------------------------------------------------------------------


def test_sticky_keeps_a_session_and_gives_a_new_one_to_the_fewest_tokens() -> None:
    nodes = [node("a", tokens=150, requests=9), node("b", tokens=100)]
    pinned = request(100, pinned="a")
    assert place(PolicyName.STICKY, pinned, nodes) == Placement.whole("a", PlacementReason.AFFINITY)
    assert place(PolicyName.STICKY, WARM, nodes) == Placement.whole("b", PlacementReason.NEW_SESSION)
    away = place(PolicyName.STICKY, request(100, pinned="gone"), nodes)
    assert away == Placement.whole("b", PlacementReason.PINNED_AWAY)


def test_sticky_leaves_a_node_with_more_than_its_share_of_the_tokens() -> None:
    # The average is 200.
    nodes = [node("a", tokens=400), node("b", tokens=100), node("c", tokens=100)]
    pinned = request(100, pinned="a")
    at_bound = PolicyParameters(overload_factor=2.0)
    assert place(PolicyName.STICKY, pinned, nodes, parameters=at_bound).reason is PlacementReason.AFFINITY
    below = PolicyParameters(overload_factor=1.9)
    left = place(PolicyName.STICKY, pinned, nodes, parameters=below)
    assert left == Placement.whole("b", PlacementReason.OVERLOADED)
    even = [node("a", tokens=100), node("b", tokens=100)]
    strict = PolicyParameters(overload_factor=1.0)
    assert place(PolicyName.STICKY, pinned, even, parameters=strict).reason is PlacementReason.AFFINITY


def test_unified_keeps_a_session_whose_prompt_is_mostly_cached() -> None:
    nodes = [node("a", requests=3, tokens=110), node("b", requests=1, tokens=100)]
    policy = PolicyName.UNIFIED
    kept = place(policy, request(100, 51, pinned="a"), nodes)
    assert kept == Placement.whole("a", PlacementReason.AFFINITY)
    half = place(policy, request(100, 50, pinned="a"), nodes)
    assert half == Placement.whole("b", PlacementReason.LEAST_PRODUCT)
    overloaded = [node("a", requests=3, tokens=900), *nodes[1:], node("c", requests=2, tokens=90)]
    left = place(policy, request(100, 90, pinned="a"), overloaded)
    assert left == Placement.whole("b", PlacementReason.LEAST_PRODUCT)


# --- ps_always and cache_gate --------------------------------------------------------------------------


def test_ps_always_computes_heavy_prompts_on_the_prefill_node() -> None:
    nodes = [node("p", PREFILL, requests=99), node("a", tokens=10), node("b", tokens=5)]
    policy = PolicyName.PS_ALWAYS
    assert place(policy, HEAVY, nodes) == Placement("p", "b", PlacementReason.HEAVY_PREFILL)
    pinned = request(30_000, pinned="a")
    assert place(policy, pinned, nodes) == Placement("p", "a", PlacementReason.HEAVY_PREFILL)
    assert place(policy, request(20_000, pinned="a"), nodes).is_divided is False
    # Long, but most of it is there: not heavy.
    assert place(policy, request(80_000, 72_000, pinned="a"), nodes).reason is PlacementReason.AFFINITY


def test_cache_gate_leaves_cold_prompts_where_they_are() -> None:
    nodes = [node("p", PREFILL), node("a", tokens=10), node("b", tokens=5)]
    policy = PolicyName.CACHE_GATE
    assert place(policy, HEAVY, nodes) == Placement.whole("b", PlacementReason.NEW_SESSION)
    cached = request(60_000, 30_000, pinned="a")
    assert place(policy, cached, nodes) == Placement("p", "a", PlacementReason.CACHED_PREFILL)
    strict = PolicyParameters(gate_share=0.6)
    assert place(policy, cached, nodes, parameters=strict).reason is PlacementReason.AFFINITY
    at_gate = PolicyParameters(gate_share=0.5)
    assert place(policy, cached, nodes, parameters=at_gate).is_divided


def test_without_a_prefill_node_another_one_computes_the_prompt() -> None:
    nodes = [node("a", tokens=50), node("b", tokens=50, pending=9), node("c", tokens=50, pending=5)]
    pinned = request(30_000, pinned="a")
    divided = place(PolicyName.PS_ALWAYS, pinned, nodes)
    assert divided == Placement("c", "a", PlacementReason.HEAVY_PREFILL)


@pytest.mark.parametrize("policy", WHOLE)
def test_other_policies_divide_nothing(policy: PolicyName) -> None:
    nodes = [node("p", PREFILL), node("a"), node("b")]
    assert not place(policy, request(90_000, 40_000, pinned="a"), nodes).is_divided


# --- classes -------------------------------------------------------------------------------------------


def test_requests_are_classed_by_what_is_to_be_computed() -> None:
    bounds = ClassBounds()
    assert [bounds.of(count) for count in (1, 5_000, 5_001, 20_000, 20_001)] == [
        RequestClass.WARM,
        RequestClass.WARM,
        RequestClass.MEDIUM,
        RequestClass.MEDIUM,
        RequestClass.HEAVY,
    ]
    assert (request(80_000, 72_000).num_new_tokens, request(5, 5).num_new_tokens) == (8_000, 1)
    assert (request(100, 30).cached_share, request(0).cached_share) == (0.3, 0.0)
