"""Events are the differences between two sights."""

from __future__ import annotations

from dataclasses import replace

from tests.topology import topology
from tests.ui_sights import entry, sight

from kernelflume.core.routing import NodeState
from kernelflume.router.ui.history import History, changes
from kernelflume.router.ui.sight import Sight


def told(before: Sight, after: Sight) -> list[tuple[str, str, str, str]]:
    return [(event.kind, event.node, event.before, event.after) for event in changes(before, after, at=1.0)]


def test_a_scale_out_and_a_drain_are_told_with_their_epochs() -> None:
    before = sight(entry("a-1"), epoch=7)
    joined = sight(entry("a-1"), entry("a-2", NodeState.PREWARMING), epoch=8)
    drained = sight(entry("a-1", NodeState.DRAINING), entry("a-2"), epoch=9)
    assert told(before, joined) == [("epoch", "", "", ""), ("attention", "a-2", "", "prewarming")]
    assert told(joined, drained) == [
        ("epoch", "", "", ""),
        ("attention", "a-1", "active", "draining"),
        ("attention", "a-2", "prewarming", "active"),
    ]
    assert told(drained, sight(entry("a-2"), epoch=10))[1:] == [("attention", "a-1", "draining", "gone")]
    assert {event.epoch for event in changes(before, joined, at=1.0)} == {8}


def test_nothing_is_told_when_nothing_changed() -> None:
    same = sight(entry("a-1"))
    assert told(same, same) == []


def test_a_node_that_is_launched_joins_as_the_same_node() -> None:
    launching = replace(sight(entry("a-1")), topology=topology())
    assert ("attention", "a-3", "", "launching") in told(sight(entry("a-1")), launching)
    joined = replace(sight(entry("a-1"), entry("a-3", NodeState.PREWARMING), epoch=8), topology=topology())
    assert told(launching, joined) == [
        ("epoch", "", "", ""),
        ("attention", "a-3", "launching", "prewarming"),
    ]


def test_another_start_of_a_node_is_another_node() -> None:
    events = told(sight(entry("a-1")), sight(entry("a-1", incarnation="2")))
    assert events == [("attention", "a-1", "active", "gone"), ("attention", "a-1", "", "active")]


def test_a_weight_node_is_the_same_with_and_without_its_name() -> None:
    named = sight(entry("a-1"))
    nameless = replace(named, weight_leases=())
    assert told(nameless, named) == []
    [node] = named.weight_nodes
    troubled = replace(named, weight_nodes=(replace(node, trouble="UNAVAILABLE"),))
    assert told(named, troubled) == [("weight", "w-1", "serving", "not serving")]
    assert told(named, replace(named, weight_nodes=())) == [("weight", "w-1", "serving", "gone")]


def test_an_outage_of_the_store_is_no_event() -> None:
    assert told(Sight(), Sight(store_fault="away")) == []


def test_the_history_is_bounded_and_says_where_nobody_looked() -> None:
    history = History(max_events=4)
    history.resume(at=1.0)
    assert history.events() == ()
    for number in range(6):
        history.note(sight(epoch=number), sight(epoch=number + 1), at=float(number))
    history.resume(at=100.0)
    events = history.events()
    assert len(events) == 4
    assert (events[-1].kind, events[-1].since, events[-1].at) == ("gap", 5.0, 100.0)
