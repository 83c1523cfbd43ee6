from __future__ import annotations

from itertools import product

import pytest
from tests.store_contract import entry

from kernelflume.core.errors import LifecycleError, NotFoundError
from kernelflume.core.routing import TRANSITIONS, NodeEvent, NodeState, RoutingSnapshot


def table(**states: NodeState) -> RoutingSnapshot:
    return RoutingSnapshot(epoch=5, nodes=tuple(entry(node_id, state) for node_id, state in states.items()))


def test_a_node_joins_as_prewarming_one_epoch_on() -> None:
    before = table(a=NodeState.ACTIVE)
    after = before.with_node(entry("b"))
    assert (after.epoch, [node.node_id for node in after.nodes]) == (6, ["a", "b"])
    assert before == table(a=NodeState.ACTIVE)


def test_several_nodes_join_in_one_epoch() -> None:
    after = table().with_node(entry("a"), entry("b"))
    assert (after.epoch, [node.node_id for node in after.nodes]) == (6, ["a", "b"])
    with pytest.raises(LifecycleError, match="already"):
        table().with_node(entry("a"), entry("a"))


def test_a_taken_id_or_another_state_cannot_join() -> None:
    with pytest.raises(LifecycleError, match="already"):
        table(a=NodeState.ACTIVE).with_node(entry("a"))
    with pytest.raises(LifecycleError, match="prewarming"):
        table().with_node(entry("a", NodeState.ACTIVE))


@pytest.mark.parametrize(("state", "event"), list(product(NodeState, NodeEvent)))
def test_events_follow_the_table_or_are_refused(state: NodeState, event: NodeEvent) -> None:
    before = table(a=state, b=NodeState.ACTIVE)
    expected = TRANSITIONS.get((state, event))
    if expected is None:
        with pytest.raises(LifecycleError, match=f"a is {state}: {event}"):
            before.with_event(event, "a")
    else:
        after = before.with_event(event, "a")
        assert (after.epoch, after.get("a").state, after.get("b").state) == (6, expected, NodeState.ACTIVE)


def test_an_event_on_several_nodes_is_one_epoch_and_all_or_nothing() -> None:
    before = table(a=NodeState.READY, b=NodeState.READY, c=NodeState.ACTIVE)
    after = before.with_event(NodeEvent.PUBLISH, "a", "b")
    assert after.epoch == 6
    assert [node.node_id for node in after.in_state(NodeState.ACTIVE)] == ["a", "b", "c"]
    with pytest.raises(LifecycleError):
        before.with_event(NodeEvent.PUBLISH, "a", "c")


def test_nodes_leave_and_unknown_ones_are_named() -> None:
    before = table(a=NodeState.RETIRED, b=NodeState.ACTIVE)
    assert before.without("a").nodes == (entry("b", NodeState.ACTIVE),)
    with pytest.raises(NotFoundError, match="x is not in the routing table at epoch 5"):
        before.without("x")
    with pytest.raises(NotFoundError, match="x is not in the routing table at epoch 5"):
        before.with_event(NodeEvent.DRAIN, "x")


def test_the_json_form_reads_back() -> None:
    snapshot = table(**{str(state): state for state in NodeState})
    assert RoutingSnapshot.from_dict(snapshot.to_dict()) == snapshot


def test_another_schema_is_refused() -> None:
    with pytest.raises(LifecycleError, match="schema 99"):
        RoutingSnapshot.from_dict({**table().to_dict(), "schema": 99})


def test_a_name_differs_by_incarnation() -> None:
    assert entry("a").name == "a#0a"
