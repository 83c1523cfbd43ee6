"""Every fault that can be planted is found, and a sound cluster has none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernelflume.core.page_audit import (
    ClusterPages,
    Fault,
    FaultKind,
    HeldPages,
    NodePages,
    SequenceName,
    audit,
    lasting,
)
from kernelflume.core.ranges import OwnedRange, SequenceRoute, TokenRange

FIRST, SECOND = SequenceName("w-1#a", 1), SequenceName("w-2#b", 1)


def route(*spans: tuple[str, int, int]) -> SequenceRoute:
    return SequenceRoute(tuple(OwnedRange(node, TokenRange(start, end)) for node, start, end in spans))


def node(node_id: str = "a-1", **fields: object) -> NodePages:
    """Two sequences that share page 0, whose own pages are 1, and 2 and 3; 4 is cached, the rest is free."""
    whole = NodePages(
        node_id=node_id,
        page_tokens=4,
        num_holders=[2, 1, 1, 1, 0, 0, 0],
        cached=[4],
        free=[5, 6],
        sequences={
            FIRST: HeldPages((TokenRange(0, 6),), (0, 1)),
            SECOND: HeldPages((TokenRange(0, 4), TokenRange(8, 14)), (0, 2, 3)),
        },
    )
    return replace(whole, **fields)  # type: ignore[arg-type]


ROUTES = {
    FIRST: route(("a-1", 0, 4), ("a-1", 4, 6)),
    SECOND: route(("a-1", 0, 4), ("a-2", 4, 8), ("a-1", 8, 14)),
}
OTHER = NodePages(
    node_id="a-2",
    page_tokens=4,
    num_holders=[0, 1],
    cached=[],
    free=[0],
    sequences={SECOND: HeldPages((TokenRange(4, 8),), (1,))},
)


def cluster(*nodes: NodePages, **fields: object) -> ClusterPages:
    whole = ClusterPages(
        nodes=nodes or (node(), OTHER),
        weight_nodes=frozenset({"w-1#a", "w-2#b"}),
        routes=ROUTES,
        running=ROUTES,
    )
    return replace(whole, **fields)  # type: ignore[arg-type]


def test_a_sound_cluster_has_no_fault() -> None:
    assert audit(cluster()) == ()
    assert audit(cluster(node(pinned=[0, 4], max_pinned=2), OTHER)) == ()


@pytest.mark.parametrize(
    ("looked_at", "faults"),
    [
        (cluster(node(free=[5]), OTHER), [(FaultKind.LOST_PAGE, "page 6")]),
        (cluster(node(pinned=[0, 4, 5], max_pinned=3), OTHER), [(FaultKind.WRONG_PIN, "page 5")]),
        (cluster(node(pinned=[0, 4, 4], max_pinned=3), OTHER), [(FaultKind.WRONG_PIN, "page 4")]),
        (cluster(node(pinned=[9], max_pinned=3), OTHER), [(FaultKind.WRONG_PIN, "page 9")]),
        (
            cluster(node(pinned=[0, 1, 4], max_pinned=2), OTHER),
            [(FaultKind.TOO_MANY_PINS, "3 pages, where 2 may be pinned")],
        ),
        (cluster(node(cached=[4, 5]), OTHER), [(FaultKind.PAGE_COUNTED_TWICE, "page 5")]),
        (cluster(node(free=[5, 6, 6]), OTHER), [(FaultKind.PAGE_COUNTED_TWICE, "page 6")]),
        (cluster(node(free=[1, 5, 6]), OTHER), [(FaultKind.PAGE_COUNTED_TWICE, "page 1")]),
        (cluster(node(free=[5, 6, 7]), OTHER), [(FaultKind.WRONG_PAGES, "there are no pages 7")]),
        (
            cluster(node(num_holders=[3, 1, 1, 1, 0, 0, 0]), OTHER),
            [(FaultKind.WRONG_HOLDERS, "page 0 counts 3, and 2 sequences name it")],
        ),
        (
            cluster(node(num_holders=[1, 1, 1, 1, 0, 0, 0]), OTHER),
            [(FaultKind.WRONG_HOLDERS, "page 0 counts 1, and 2 sequences name it")],
        ),
        (
            cluster(weight_nodes=frozenset({"w-2#b"})),
            [
                (FaultKind.STALE_ROUTE, "sequence 1 of w-1#a"),
                (FaultKind.DEAD_WEIGHT_NODE, "sequence 1 of w-1#a"),
            ],
        ),
        (
            cluster(running={SECOND: ROUTES[SECOND]}, routes={SECOND: ROUTES[SECOND]}),
            [(FaultKind.LEFT_OVER, "sequence 1 of w-1#a")],
        ),
        (cluster(routes={SECOND: ROUTES[SECOND]}), [(FaultKind.NO_ROUTE, "sequence 1 of w-1#a")]),
        (
            cluster(node(), replace(OTHER, num_holders=[0, 0], free=[0, 1], sequences={})),
            [(FaultKind.NOT_HELD, "sequence 1 of w-2#b has [4,8) by its weight node")],
        ),
        (
            cluster(running={**ROUTES, FIRST: route(("a-1", 0, 7))}),
            [
                (
                    FaultKind.OTHER_RANGES,
                    "sequence 1 of w-1#a has [0,6) here, and [0,7) by its weight node",
                )
            ],
        ),
        (
            cluster(routes={**ROUTES, FIRST: route(("a-2", 0, 6))}),
            [(FaultKind.OTHER_RANGES, "sequence 1 of w-1#a has [0,6) here, and nothing by the table")],
        ),
        (
            cluster(routes={**ROUTES, SECOND: route(("a-1", 0, 3), ("a-2", 3, 8), ("a-1", 8, 14))}),
            [
                (
                    FaultKind.OTHER_RANGES,
                    "sequence 1 of w-2#b has [0,4) [8,14) here, and [0,3) [8,14) by the table",
                ),
                (FaultKind.OTHER_RANGES, "sequence 1 of w-2#b has [4,8) here, and [3,8) by the table"),
            ],
        ),
    ],
)
def test_a_planted_fault_is_found_and_named(
    looked_at: ClusterPages, faults: list[tuple[FaultKind, str]]
) -> None:
    assert sorted((fault.kind, fault.detail) for fault in audit(looked_at)) == sorted(faults)


def test_pages_that_do_not_fit_the_tokens_are_a_fault() -> None:
    sequences = {FIRST: HeldPages((TokenRange(0, 6),), (0, 1, 1)), SECOND: node().sequences[SECOND]}
    faults = audit(cluster(node(num_holders=[2, 2, 1, 1, 0, 0, 0], sequences=sequences), OTHER))
    assert [fault.kind for fault in faults] == [FaultKind.WRONG_PAGES]


def test_the_table_may_be_behind_a_tail_and_nothing_else() -> None:
    grown = {**ROUTES, SECOND: route(("a-1", 0, 4), ("a-2", 4, 8), ("a-1", 8, 9))}
    opened = {**ROUTES, SECOND: route(("a-1", 0, 4), ("a-2", 4, 8), ("a-1", 8, 8))}
    ahead = {**ROUTES, SECOND: route(("a-1", 0, 4), ("a-2", 4, 8), ("a-1", 8, 15))}
    elsewhere = {**ROUTES, SECOND: route(("a-1", 0, 4), ("a-2", 4, 8))}
    assert audit(cluster(routes=grown)) == ()
    assert audit(cluster(routes=opened)) == ()
    assert [fault.kind for fault in audit(cluster(routes=ahead))] == [FaultKind.OTHER_RANGES]
    assert [fault.kind for fault in audit(cluster(routes=elsewhere))] == [FaultKind.OTHER_RANGES]


def test_only_what_both_looks_show_lasts() -> None:
    moving = Fault("a-1", FaultKind.OTHER_RANGES, "sequence 1 of w-1#a has [0,6) here")
    moved = replace(moving, detail="sequence 1 of w-1#a has [0,7) here")
    lost = Fault("a-1", FaultKind.LOST_PAGE, "page 6")
    assert lasting([moving, lost], [moved, lost]) == (lost,)
    assert str(lost) == "a-1: lost page: page 6"
    assert str(Fault("", FaultKind.STALE_ROUTE, "sequence 1 of w-1#a")) == "stale route: sequence 1 of w-1#a"
