"""Byte balance after prefill, and the monotonicity that the policy relies on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernelflume.core.profile import Curve
from kernelflume.scaler import cost


@given(st.lists(st.integers(0, 300), max_size=12), st.integers(1, 9))
def test_ranges_cover_every_sequence_and_balance_nodes(lengths: list[int], num_nodes: int) -> None:
    routes = cost.balanced_ranges(lengths, num_nodes)
    assert [sum(tokens for _, tokens in ranges) for ranges in routes] == lengths
    held = [0] * num_nodes
    for ranges in routes:
        nodes = [node for node, _ in ranges]
        assert nodes == sorted(set(nodes))  # each node once, in order of position
        for node, tokens in ranges:
            assert tokens > 0
            held[node] += tokens
    assert max(held) - min(held) <= 1
    assert sum(len(ranges) > 1 for ranges in routes) <= num_nodes - 1


@given(st.floats(0, 1e12), st.floats(1, 1e9))
def test_nodes_are_enough_and_not_one_too_many(total: float, threshold: float) -> None:
    nodes = cost.nodes_for(total, threshold)
    assert nodes * threshold >= total * (1 - 1e-6)
    assert nodes == 1 or (nodes - 1) * threshold < total


@given(
    st.lists(st.tuples(st.floats(0.5, 50), st.floats(0, 10)), min_size=1, max_size=6),
    st.floats(0, 1000),
    st.floats(0, 100),
)
def test_a_rising_curve_rises_everywhere(
    steps: list[tuple[float, float]], rows: float, further: float
) -> None:
    points, x, y = [], 0.0, 0.0
    for dx, dy in steps:
        x, y = x + dx, y + dy
        points.append((x, y))
    curve = Curve(tuple(points))
    assert curve.at(rows) <= curve.at(rows + further) + 1e-9
