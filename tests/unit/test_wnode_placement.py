"""Where ranges go, and which tails move when the pool changes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kernelflume.wnode.placement import MoveReason, NodeRoom, choose_node, rebalance, shared_tails


def room(node_id: str, free: int, tails: int = 0) -> NodeRoom:
    return NodeRoom(node_id=node_id, num_free_pages=free, num_tails=tails)


def test_new_range_goes_where_most_room_a_tail_is_left() -> None:
    assert choose_node([room("a", 50, tails=4), room("b", 40, tails=1)], 1) == "b"


def test_empty_newcomer_does_not_draw_every_new_range() -> None:
    tails = {"old": 4, "new": 0}
    for _ in range(10):
        chosen = choose_node([room("old", 600, tails["old"]), room("new", 1000, tails["new"])], 1)
        assert chosen is not None
        tails[chosen] += 1
    assert tails["old"] > 4


def test_node_without_room_is_not_chosen() -> None:
    assert choose_node([room("a", 2), room("b", 1)], 3) is None
    assert choose_node([], 1) is None


def test_avoided_node_is_taken_only_when_no_other_fits() -> None:
    assert choose_node([room("a", 100), room("b", 1)], 1, avoid="a") == "b"
    assert choose_node([room("a", 100), room("b", 0)], 1, avoid="a") == "a"


def test_joined_node_receives_its_share_of_tails_and_no_more() -> None:
    tails = dict.fromkeys(range(8), "a")
    moves = rebalance([room("a", 100), room("b", 100), room("c", 100)], tails, joined=frozenset({"b", "c"}))
    assert Counter(move.node_id for move in moves) in ({"b": 3, "c": 2}, {"b": 2, "c": 3})
    assert {move.reason for move in moves} == {MoveReason.SHARE}


def test_unchanged_pool_moves_nothing() -> None:
    tails = {1: "a", 2: "a", 3: "a", 4: "b"}
    assert rebalance([room("a", 10), room("b", 1000)], tails, joined=frozenset()) == []


def test_tails_leave_a_node_that_is_no_longer_active() -> None:
    moves = rebalance([room("a", 100)], {1: "a", 2: "gone", 3: "gone"}, joined=frozenset())
    assert {(move.sequence_id, move.node_id) for move in moves} == {(2, "a"), (3, "a")}
    assert {move.reason for move in moves} == {MoveReason.NODE_NOT_ACTIVE}


def test_no_active_node_means_no_move() -> None:
    assert rebalance([], {1: "gone"}, joined=frozenset()) == []


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=6), st.integers(0, 50))
def test_shares_add_up(free: list[int], num_tails: int) -> None:
    nodes = [room(str(index), pages) for index, pages in enumerate(free)]
    shares = shared_tails(nodes, num_tails)
    assert sum(shares.values()) == (num_tails if sum(free) else 0)
    assert all(shares[node.node_id] == 0 for node in nodes if node.num_free_pages == 0)
