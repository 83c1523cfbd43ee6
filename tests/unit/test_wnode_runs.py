"""Which node is to share which blocks: the longest beginning, in as few runs as can be."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernelflume.wnode.runs import Run, by_node, choose_runs, cut, num_beginning, route_of, runs_of

NUM_BLOCKS = 6
HELD = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.lists(st.booleans(), min_size=NUM_BLOCKS, max_size=NUM_BLOCKS)
)


def found(**held: str) -> dict[str, np.ndarray]:
    """Read `a="110"`: node a holds blocks 0 and 1 of three."""
    return {node_id: np.array([mark == "1" for mark in marks]) for node_id, marks in held.items()}


def test_longest_beginning_is_taken_and_nothing_behind_a_gap() -> None:
    assert choose_runs(found(a="1101", b="0000")) == (Run("a", 0, 2),)
    assert choose_runs(found(a="1100", b="0011")) == (Run("a", 0, 2), Run("b", 2, 4))
    assert choose_runs(found(a="0111")) == ()
    assert choose_runs({}) == ()


def test_node_that_goes_on_furthest_is_taken_so_that_ranges_are_few() -> None:
    assert choose_runs(found(a="1100", b="1111")) == (Run("b", 0, 4),)
    assert choose_runs(found(a="1110", b="0111")) == (Run("a", 0, 3), Run("b", 3, 4))


def test_first_of_equal_nodes_is_taken() -> None:
    assert choose_runs(found(b="11", a="11")) == (Run("b", 0, 2),)


@given(HELD)
def test_runs_cover_the_longest_beginning_with_the_fewest_changes(held: dict[str, list[bool]]) -> None:
    runs = choose_runs({node_id: np.array(is_here, bool) for node_id, is_here in held.items()})
    length = 0
    while length < NUM_BLOCKS and any(is_here[length] for is_here in held.values()):
        length += 1
    assert (runs[-1].end if runs else 0) == length
    assert [run.start for run in runs] == [0, *(run.end for run in runs)][:-1]
    assert all(all(held[run.node_id][run.start : run.end]) for run in runs)
    ways = [
        way
        for way in product(held, repeat=length)
        if all(held[node_id][block] for block, node_id in enumerate(way))
    ]
    fewest = min(sum(a != b for a, b in pairwise(way)) for way in ways) if length else -1
    assert len(runs) == fewest + 1


def test_beginning_ends_where_a_node_holds_less_than_it_was_asked_for() -> None:
    runs = (Run("a", 0, 2), Run("b", 2, 4), Run("a", 4, 6))
    assert num_beginning(runs, {"a": 4, "b": 2}) == 6
    assert num_beginning(runs, {"a": 3, "b": 2}) == 5
    assert num_beginning(runs, {"a": 4, "b": 1}) == 3
    assert num_beginning(runs, {"a": 1, "b": 2}) == 1
    assert num_beginning(runs, {}) == 0
    assert num_beginning((), {}) == 0


def test_cut_and_route() -> None:
    runs = (Run("a", 0, 2), Run("b", 2, 4))
    assert cut(runs, 3) == (Run("a", 0, 2), Run("b", 2, 3))
    assert cut(runs, 2) == (Run("a", 0, 2),)
    assert cut(runs, 0) == ()
    route = route_of(runs, 4, num_tokens=16)
    assert [(owned.node_id, owned.tokens.start, owned.tokens.end) for owned in route.ranges] == [
        ("a", 0, 8),
        ("b", 8, 16),
    ]
    assert runs_of(route, 4) == runs
    rest = route_of(runs, 4, num_tokens=13)
    assert rest.num_tokens == 13
    assert runs_of(rest, 4) == runs
    assert runs_of(rest, 3) == ()  # a range does not begin with a block of so many tokens
    assert by_node((*runs, Run("a", 4, 5))) == {
        "a": (Run("a", 0, 2), Run("a", 4, 5)),
        "b": (Run("b", 2, 4),),
    }
