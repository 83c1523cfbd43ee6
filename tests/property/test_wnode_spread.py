"""Spreading a prompt: all of it is placed, no node is overdrawn, and all that take part are left alike."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernelflume.wnode.placement import NodeRoom, spread_pages

rooms = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 9)), min_size=1, max_size=7)


@given(rooms, st.integers(0, 400), st.integers(1, 40))
def test_spread(nodes: list[tuple[int, int]], num_pages: int, min_pages: int) -> None:
    listed = [
        NodeRoom(node_id=str(number), num_free_pages=free, num_tails=tails)
        for number, (free, tails) in enumerate(nodes)
    ]
    shares = spread_pages(listed, num_pages, min_pages=min_pages)
    if not shares:
        return
    by_id = {node.node_id: node for node in listed}
    assert len(shares) == len(dict(shares)) >= 2
    assert sum(pages for _, pages in shares) == num_pages
    assert all(min_pages <= pages <= by_id[node_id].num_free_pages for node_id, pages in shares)
    left = [by_id[node_id].num_free_pages - pages for node_id, pages in shares]
    assert max(left) - min(left) <= 1
    tails = [by_id[node_id].num_tails for node_id, _ in shares]
    assert tails[-1] == min(tails)
