from __future__ import annotations

from kernelflume.router.placement import Placement, PlacementReason, WeightNodeView, place


def node(
    address: str, *, requests: int = 0, tokens: int = 0, serving: bool = True, full: bool = False
) -> WeightNodeView:
    return WeightNodeView(
        address=address, serving=serving, num_requests=requests, num_tokens=tokens, queue_full=full
    )


def test_the_only_node_that_serves_is_taken() -> None:
    nodes = [node("a", serving=False), node("b", requests=9)]
    assert place(nodes) == Placement("b", PlacementReason.ONLY_CANDIDATE)


def test_fewest_requests_then_fewest_tokens_then_address() -> None:
    busy, idle = node("a", requests=3), node("b", requests=1, tokens=99)
    assert place([busy, idle]) == Placement("b", PlacementReason.LEAST_REQUESTS)
    assert place([idle, node("c", requests=1, tokens=5)]) == Placement("c", PlacementReason.LEAST_TOKENS)
    assert place([node("z"), node("y")]).address == "y"


def test_a_full_queue_is_avoided_but_tried_when_all_are_full() -> None:
    assert place([node("a", full=True), node("b", requests=50)]).address == "b"
    full = [node("a", requests=9, full=True), node("b", requests=8, full=True)]
    assert place(full) == Placement("b", PlacementReason.ALL_FULL)


def test_nodes_that_failed_are_not_tried_again() -> None:
    nodes = [node("a"), node("b", requests=5)]
    assert place(nodes, failed={"a"}) == Placement("b", PlacementReason.ONLY_CANDIDATE)
    assert place(nodes, failed={"a", "b"}) == Placement(None, PlacementReason.ALL_FAILED)


def test_no_node_is_told_apart_from_all_failed() -> None:
    assert place([]) == Placement(None, PlacementReason.NONE_SERVING)
    assert place([node("a", serving=False)]) == Placement(None, PlacementReason.NONE_SERVING)
