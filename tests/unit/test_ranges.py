from __future__ import annotations

import pytest

from kernelflume.core.errors import LifecycleError
from kernelflume.core.ranges import OwnedRange, SequenceRoute, TokenRange


def owned(node_id: str, start: int, end: int) -> OwnedRange:
    return OwnedRange(node_id, TokenRange(start, end))


def test_a_new_route_covers_nothing_and_has_no_tail() -> None:
    route = SequenceRoute()
    assert (route.num_tokens, route.tail_node_id, route.node_ids) == (0, None, ())


def test_growth_goes_to_the_tail_and_a_new_tail_seals_the_old_one() -> None:
    route = SequenceRoute().with_tail("a-1").extended(4).with_tail("a-2").extended(3)
    assert route.ranges == (owned("a-1", 0, 4), owned("a-2", 4, 7))
    assert route.tail_node_id == "a-2"
    assert (route.num_tokens_on("a-1"), route.num_tokens_on("a-2"), route.num_tokens_on("a-3")) == (4, 3, 0)


def test_an_owner_is_named_once_however_many_ranges_it_has() -> None:
    route = (
        SequenceRoute().with_tail("a-1").extended(1).with_tail("a-2").extended(1).with_tail("a-1").extended(1)
    )
    assert route.node_ids == ("a-1", "a-2")
    assert route.num_tokens_on("a-1") == 2


def test_an_empty_tail_is_replaced() -> None:
    route = SequenceRoute().with_tail("a-1").extended(2).with_tail("a-2").with_tail("a-3")
    assert route.ranges == (owned("a-1", 0, 2), owned("a-3", 2, 2))


def test_an_edit_leaves_the_old_route_as_it_was() -> None:
    route = SequenceRoute().with_tail("a-1").extended(2)
    route.extended(1)
    route.with_tail("a-2")
    assert route.ranges == (owned("a-1", 0, 2),)


@pytest.mark.parametrize(("start", "end"), [(-1, 2), (3, 2)])
def test_a_backward_or_negative_range_is_refused(start: int, end: int) -> None:
    with pytest.raises(LifecycleError):
        TokenRange(start, end)


@pytest.mark.parametrize(
    "ranges",
    [
        (owned("a-1", 1, 2),),
        (owned("a-1", 0, 2), owned("a-2", 3, 4)),
        (owned("a-1", 0, 2), owned("a-2", 1, 4)),
        (owned("a-1", 0, 0), owned("a-2", 0, 4)),
    ],
    ids=["late-start", "gap", "overlap", "empty-sealed"],
)
def test_ranges_that_do_not_cover_a_prefix_once_are_refused(ranges: tuple[OwnedRange, ...]) -> None:
    with pytest.raises(LifecycleError):
        SequenceRoute(ranges)


@pytest.mark.parametrize(
    ("route", "num_tokens"), [(SequenceRoute(), 1), (SequenceRoute().with_tail("a-1"), -1)]
)
def test_growth_without_a_tail_or_backwards_is_refused(route: SequenceRoute, num_tokens: int) -> None:
    with pytest.raises(LifecycleError):
        route.extended(num_tokens)
