from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.table_entries import entry
from tests.unit.test_performance_profile import PROFILE

from kernelflume.core.leases import LeaseRecord, NodeKind, NodeLoad
from kernelflume.core.routing import NodeState, RoutingSnapshot
from kernelflume.scaler.observe import Observation
from kernelflume.scaler.operation import Operation, OperationEvent
from kernelflume.scaler.policy import (
    Decision,
    PolicySettings,
    PolicyState,
    RemovalReason,
    ScaleReason,
    after_operation,
    after_own,
    choose_victims,
    decide,
)
from kernelflume.scaler.scaling_policy import ScalingPolicy

if TYPE_CHECKING:
    from kernelflume.core.routing import AttentionNodeEntry

ACTIVE = NodeState.ACTIVE
SETTINGS = PolicySettings(
    scaling=ScalingPolicy(automatic=False, maximum_nodes=4),
    lost_grace_s=3.0,
    retry_min_s=1.0,
    retry_max_s=5.0,
)
NOTHING = Decision()


def lease(node_id: str, *, incarnation: str = "0", used_tokens: int = 0) -> LeaseRecord:
    return LeaseRecord(
        kind=NodeKind.ATTENTION,
        node_id=node_id,
        incarnation=incarnation,
        address="h:1",
        load=NodeLoad(used_tokens=used_tokens),
    )


def weight(name: str) -> LeaseRecord:
    node_id, _, incarnation = name.partition("#")
    return LeaseRecord(kind=NodeKind.WEIGHT, node_id=node_id, incarnation=incarnation, address="h:1")


def pool(*entries: AttentionNodeEntry, alive: str | None = None, **fields: Any) -> Observation:
    """Observe ``entries``, of which those in ``alive`` (default: all) hold their lease."""
    names = [node.node_id for node in entries] if alive is None else alive.split()
    values = {
        "now_s": 100.0,
        "snapshot": RoutingSnapshot(5, entries),
        "attention": {name: lease(name) for name in names},
        "weights": (),
        **fields,
    }
    return Observation(**values)


def decision(observation: Observation, state: PolicyState) -> Decision:
    return decide(observation, state, SETTINGS)[0]


def reasons(made: Decision) -> dict[str, RemovalReason]:
    return {removal.node_id: removal.reason for removal in made.removals}


def operation(*node_ids: str) -> Operation:
    return Operation.begin("op", target=9, initial=1, now_s=0.0).with_nodes(*node_ids)


def test_a_pool_as_wanted_is_left_alone() -> None:
    assert decision(pool(entry("a"), entry("b")), PolicyState(target=2)) == NOTHING
    assert decision(pool(entry("a")), PolicyState()) == NOTHING


@pytest.mark.parametrize(("target", "scale_to"), [(3, 3), (1, 1), (9, 4), (0, 1)])
def test_another_number_than_wanted_is_scaled_within_bounds(target: int, scale_to: int) -> None:
    made = decision(pool(entry("a"), entry("b")), PolicyState(target=target))
    assert (made.scale_to, made.scale_reason) == (scale_to, ScaleReason.TARGET)


def test_only_active_nodes_count() -> None:
    observation = pool(entry("a"), entry("b", NodeState.PREWARMING), operation=operation("b"))
    assert decision(observation, PolicyState(target=2)) == NOTHING
    assert decision(replace(observation, operation=None), PolicyState(target=2)).scale_to is None


def test_nothing_is_begun_while_an_operation_runs_or_before_a_retry_is_due() -> None:
    observation = pool(entry("a"))
    assert decision(replace(observation, operation=operation()), PolicyState(target=2)) == NOTHING
    assert decision(observation, PolicyState(target=2, retry_at_s=100.1)) == NOTHING
    assert decision(observation, PolicyState(target=2, retry_at_s=100.0)).scale_to == 2


def test_a_node_without_lease_is_lost_after_the_grace() -> None:
    observation = pool(entry("a"), entry("b"), alive="a")
    made, state = decide(observation, PolicyState(target=2), SETTINGS)
    assert made == NOTHING
    made, state = decide(replace(observation, now_s=103.0), state, SETTINGS)
    assert made == NOTHING
    made, state = decide(replace(observation, now_s=103.1), state, SETTINGS)
    assert reasons(made) == {"b": RemovalReason.LEASE_LOST}
    assert made.scale_to is None  # first the table, then look again


def test_a_lease_that_comes_back_starts_the_grace_anew() -> None:
    missing = pool(entry("a"), alive="")
    _, state = decide(missing, PolicyState(), SETTINGS)
    _, state = decide(replace(pool(entry("a")), now_s=102.0), state, SETTINGS)
    made, state = decide(replace(missing, now_s=104.0), state, SETTINGS)
    assert made == NOTHING
    assert state.missing_since_s == {"a#0": 104.0}


def test_an_ended_process_is_lost_at_once_with_its_reason() -> None:
    made = decision(pool(entry("a"), entry("b"), ended={"b": "ended with code 3"}), PolicyState(target=2))
    (removal,) = made.removals
    assert (removal.node_id, removal.reason, removal.detail) == (
        "b",
        RemovalReason.PROCESS_ENDED,
        "ended with code 3",
    )


def test_a_node_that_was_started_again_is_another_one() -> None:
    made = decision(pool(entry("a"), attention={"a": lease("a", incarnation="1")}), PolicyState())
    assert [removal.reason for removal in made.removals] == [RemovalReason.RESTARTED]


@pytest.mark.parametrize("state", [NodeState.PREWARMING, NodeState.READY, NodeState.RETIRED])
def test_a_node_between_states_that_no_operation_owns_is_removed(state: NodeState) -> None:
    observation = pool(entry("a"), entry("b", state))
    made = decision(observation, PolicyState())
    assert reasons(made) == {"b": RemovalReason.ABANDONED}
    assert decision(replace(observation, operation=operation("b")), PolicyState()) == NOTHING


def test_a_draining_node_that_no_operation_owns_is_resumed() -> None:
    observation = pool(entry("a"), entry("b", NodeState.DRAINING))
    assert decision(observation, PolicyState()).resumed == ("b",)
    assert decision(replace(observation, operation=operation("b")), PolicyState()) == NOTHING


def test_a_draining_node_of_an_operation_is_removed_when_it_is_lost() -> None:
    observation = pool(
        entry("a"), entry("b", NodeState.DRAINING), operation=operation("b"), ended={"b": "ended"}
    )
    assert [removal.node_id for removal in decision(observation, PolicyState()).removals] == ["b"]


def test_routes_of_a_weight_node_are_dropped_after_the_grace() -> None:
    observation = pool(
        entry("a"), weights=(weight("w-1#a"),), routed_weight_nodes=frozenset({"w-1#a", "w-2#b"})
    )
    made, state = decide(observation, PolicyState(), SETTINGS)
    assert made == NOTHING
    made, _ = decide(replace(observation, now_s=103.1), state, SETTINGS)
    assert made == Decision(forgotten_weight_nodes=("w-2#b",))


def test_nodes_on_offer_are_adopted_up_to_the_maximum() -> None:
    made = decision(pool(entry("a"), num_offered=2), PolicyState())
    assert (made.scale_to, made.scale_reason) == (3, ScaleReason.ADOPT)
    assert decision(pool(entry("a"), num_offered=9), PolicyState()).scale_to == 4
    assert decision(pool(entry("a"), num_offered=0), PolicyState()) == NOTHING


def test_a_target_beyond_what_is_on_offer_takes_what_there_is() -> None:
    assert decision(pool(entry("a"), num_offered=1), PolicyState(target=3)).scale_to == 2
    assert decision(pool(entry("a"), num_offered=0), PolicyState(target=3)) == NOTHING
    assert decision(pool(entry("a"), num_offered=2), PolicyState(target=1)) == NOTHING


def test_retries_wait_ever_longer_until_one_succeeds() -> None:
    state = PolicyState(target=2)
    delays = []
    for _ in range(5):
        state = after_operation(state, SETTINGS, succeeded=False, now_s=100.0)
        delays.append(state.retry_at_s - 100.0)
    assert delays == [1.0, 2.0, 4.0, 5.0, 5.0]
    state = after_operation(state, SETTINGS, succeeded=True, now_s=200.0)
    assert (state.num_failures, state.retry_at_s) == (0, 0.0)


def test_victims_are_the_emptiest_and_then_the_newest() -> None:
    entries = [entry("a"), entry("b"), entry("c"), entry("d")]
    leases = {
        "a": lease("a", used_tokens=5),
        "b": lease("b", used_tokens=1),
        "c": lease("c", used_tokens=1),
        "d": lease("d", used_tokens=9),
    }
    assert choose_victims(entries, leases, 3) == ("c", "b", "a")
    assert choose_victims(entries, {}, 2) == ("d", "c")


@pytest.mark.parametrize(("count", "chosen"), [(0, ()), (-1, ()), (2, ("b",)), (9, ("b",))])
def test_one_node_is_always_left(count: int, chosen: tuple[str, ...]) -> None:
    assert choose_victims([entry("a"), entry("b")], {}, count) == chosen
    assert choose_victims([entry("a")], {}, count) == ()


@pytest.mark.parametrize(
    ("initial", "profiled_s", "prewarm_s"), [(0, 0.5, 0.0), (1, 0.5, 8.0), (0, 0.0, 8.0), (1, 0.0, 8.0)]
)
def test_the_first_nodes_of_all_teach_no_prewarm_where_it_is_known(
    initial: int, profiled_s: float, prewarm_s: float
) -> None:
    """They wait for the weight node that loads its model; one that joins others does not."""
    settings = replace(SETTINGS, profile=replace(PROFILE, prewarm_s=profiled_s))
    operation = Operation.begin("op", target=initial + 1, initial=initial, now_s=100.0)
    for event in ("launched", "prepared", "publish", "published"):
        operation = operation.after(OperationEvent(event), now_s=108.0, reason="")
    assert operation.prewarm_s == 8.0
    state = after_own(PolicyState(), settings, operation, overtaken=False, now_s=108.0)
    assert state.sizing.prewarm_s == prewarm_s
    assert state.sizing.changed_at_s == 108.0
