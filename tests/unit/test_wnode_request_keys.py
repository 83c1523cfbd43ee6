"""Random numbers of requests without a seed: repeatable on one node, others on each."""

from __future__ import annotations

from kernelflume.wnode.request_keys import RequestKeys


def test_nodes_of_one_seed_draw_differently_and_each_the_same_again() -> None:
    first, again, other = RequestKeys(0, "w0"), RequestKeys(0, "w0"), RequestKeys(0, "w1")
    keys = [first.next() for _ in range(100)]
    assert keys == [again.next() for _ in range(100)]
    assert len({*keys, *(other.next() for _ in range(100))}) == 200
    assert all(-(2**63) <= key < 2**63 for key in keys)
