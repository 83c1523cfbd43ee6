from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernelflume.core.ranges import SequenceRoute
from kernelflume.store.records import dump_route, load_route

node_ids = st.sampled_from(["a-1", "a-2", "a-3"])
edits = st.lists(st.one_of(node_ids, st.integers(min_value=0, max_value=9)), max_size=40)


def apply(first: str, rest: list[str | int]) -> SequenceRoute:
    route = SequenceRoute().with_tail(first)
    for edit in rest:
        route = route.with_tail(edit) if isinstance(edit, str) else route.extended(edit)
    return route


@given(first=node_ids, rest=edits)
def test_any_series_of_edits_covers_each_token_once_with_one_tail(first: str, rest: list[str | int]) -> None:
    route = apply(first, rest)
    total = sum(edit for edit in rest if isinstance(edit, int))
    positions = [
        position for owned in route.ranges for position in range(owned.tokens.start, owned.tokens.end)
    ]
    assert positions == list(range(total))
    assert route.num_tokens == total
    assert route.tail_node_id == next((edit for edit in reversed(rest) if isinstance(edit, str)), first)
    assert all(owned.tokens.num_tokens for owned in route.ranges[:-1])
    assert sum(route.num_tokens_on(node_id) for node_id in route.node_ids) == total


@given(first=node_ids, rest=edits)
def test_each_token_stays_where_it_was_appended(first: str, rest: list[str | int]) -> None:
    owners: list[str] = []
    tail = first
    for edit in rest:
        if isinstance(edit, str):
            tail = edit
        else:
            owners.extend([tail] * edit)
    route = apply(first, rest)
    assert owners == [owned.node_id for owned in route.ranges for _ in range(owned.tokens.num_tokens)]


@given(first=node_ids, rest=edits)
def test_a_route_reads_back_from_the_store(first: str, rest: list[str | int]) -> None:
    route = apply(first, rest)
    assert load_route(dump_route(route)) == route
