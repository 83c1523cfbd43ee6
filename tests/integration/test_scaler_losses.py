from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.scaler_rig import FakeAttentionNode, FakeProvider, eventually, scaler_rig

from kernelflume.core.errors import ConflictError
from kernelflume.core.routing import AttentionNodeEntry, NodeEvent, NodeState, RoutingSnapshot
from kernelflume.scaler.policy import Removal, RemovalReason
from kernelflume.scaler.providers.static import StaticProvider

if TYPE_CHECKING:
    from kernelflume.store.base import RoutingStore

pytestmark = pytest.mark.redis

ACTIVE = NodeState.ACTIVE


def entry_of(node: FakeAttentionNode, state: NodeState = NodeState.PREWARMING) -> AttentionNodeEntry:
    return AttentionNodeEntry(
        node_id=node.node_id,
        incarnation=node.incarnation,
        address=node.address,
        state=state,
        capacity_tokens=1000,
        threshold_tokens=1000,
    )


async def test_a_node_whose_process_ended_is_removed_and_replaced(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=2) as rig:
        await rig.settles_at(a_1=ACTIVE, a_2=ACTIVE)
        weight = await rig.add_weight()
        await rig.provider.kill("a-1")
        await rig.settles_at(a_2=ACTIVE, a_3=ACTIVE)

        async def forgotten() -> bool:
            return set(weight.released) == {"a-1"}

        await eventually(forgotten)


async def test_a_node_whose_lease_ran_out_is_removed_ended_and_replaced(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=2) as rig:
        await rig.settles_at(a_1=ACTIVE, a_2=ACTIVE)
        await rig.provider.nodes["a-1"].die()  # the provider sees no process end
        await rig.settles_at(a_2=ACTIVE, a_3=ACTIVE)

        async def ended() -> bool:
            return bool(rig.provider.terminated == ["a-1"])

        await eventually(ended)


async def test_replacing_is_tried_again_after_failures(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=1) as rig:
        await rig.settles_at(a_1=ACTIVE)
        rig.provider.ends_at_once = "ended with code 1"
        await rig.provider.kill("a-1")

        async def failed_twice() -> bool:
            return len(rig.provider.terminated) >= 3

        await eventually(failed_twice)
        assert await rig.states() == {}
        rig.provider.ends_at_once = None

        async def replaced() -> bool:
            return ACTIVE in (await rig.states()).values()

        await eventually(replaced)


async def test_a_scaler_that_starts_anew_has_as_many_nodes_as_its_predecessor(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=2) as rig:
        await rig.settles_at(a_1=ACTIVE, a_2=ACTIVE)
        await rig.leadership.resign()
    # The first scaler's nodes ended with it and are still in the table.

    def after_two(store: RoutingStore) -> FakeProvider:
        provider = FakeProvider(store)
        provider._number = 2
        return provider

    async with scaler_rig(valkey_url, make_provider=after_two) as rig:
        await rig.settles_at(a_3=ACTIVE, a_4=ACTIVE)


async def test_strays_of_a_crashed_scaler_are_put_right(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, make_provider=StaticProvider, runs=False) as rig:
        nodes = [await rig.add_attention(f"a-{number}") for number in range(1, 5)]
        states = [ACTIVE, NodeState.DRAINING, NodeState.PREWARMING, NodeState.RETIRED]
        entries = tuple(entry_of(node, state) for node, state in zip(nodes, states, strict=True))
        await rig.outside.restore(RoutingSnapshot(epoch=9, nodes=entries))
        rig.controller._policy_state = None
        await rig.controller.look()
        assert await rig.states() == {"a-1": ACTIVE, "a-2": ACTIVE}


async def test_nodes_that_others_start_are_adopted_as_they_join_and_leave(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, make_provider=StaticProvider) as rig:
        first, second = await rig.add_attention("left"), await rig.add_attention("right")
        await rig.settles_at(left=ACTIVE, right=ACTIVE)
        assert rig.controller.target is None
        await first.die()
        await rig.settles_at(right=ACTIVE)
        await rig.add_attention("third")
        await rig.settles_at(right=ACTIVE, third=ACTIVE)
        assert (await rig.scale("down", 1)).node_ids == ("third",)
        await rig.settles_at(right=ACTIVE)  # the released node runs on and is not taken again
        assert (await rig.scale("up", 2)).node_ids == ("third",)
        await rig.settles_at(right=ACTIVE, third=ACTIVE)
        assert (await rig.outside.read()).get("right").incarnation == second.incarnation


async def test_a_node_that_was_started_again_is_taken_for_a_new_one(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, make_provider=StaticProvider) as rig:
        await rig.add_attention("left")
        await rig.settles_at(left=ACTIVE)
        again = await rig.add_attention("left")
        rig.attention[0]._beating.cancel()  # type: ignore[union-attr]
        await again.beat()

        async def taken() -> bool:
            entry = (await rig.outside.read()).find("left")
            return entry is not None and entry.incarnation == again.incarnation and entry.state is ACTIVE

        await eventually(taken)


async def test_an_old_leader_changes_nothing(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=1) as rig:
        await rig.settles_at(a_1=ACTIVE)
        record = rig.leadership._record
        assert record is not None
        await rig.outside.resign(record.name)
        assert await rig.outside.lead("another", ttl_s=30) is not None
        before = await rig.outside.read()
        with pytest.raises(ConflictError, match="fencing token"):
            await rig.begin("up", 2)
        assert await rig.outside.read() == before
        with pytest.raises(ConflictError, match="another scaler"):
            await _keep_without_pause(rig.leadership)
        assert rig.leadership.token is None
        # Without a token nothing would be checked: what still runs while it ends must not write either.
        with pytest.raises(ConflictError, match="does not lead"):
            await rig.begin("again", 2)
        assert await rig.outside.read() == before


async def _keep_without_pause(leadership: object) -> None:
    leadership._interval_s = 0.01  # type: ignore[attr-defined]
    await leadership.keep()  # type: ignore[attr-defined]


async def test_the_metrics_tell_epoch_nodes_and_operations(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=1) as rig:
        await rig.settles_at(a_1=ACTIVE)
        await rig.add_weight()
        await rig.scale("up", 2)
        await rig.controller.look()

        def value(name: str, **labels: str) -> float | None:
            return rig.metrics.registry.get_sample_value(name, labels)

        assert value("kernelflume_routing_epoch") == (await rig.outside.read()).epoch
        assert value("kernelflume_attention_nodes", state="active") == 2
        assert value("kernelflume_attention_nodes", state="draining") == 0
        assert value("kernelflume_scale_operations_total", result="succeeded") == 2
        assert value("kernelflume_scale_phase_seconds_count", phase="prewarming") == 2
        assert value("kernelflume_prepare_seconds_sum", part="connect") == pytest.approx(0.2)
        assert value("kernelflume_prepare_seconds_sum", part="warm") == pytest.approx(0.002)
        await rig.provider.kill("a-1")
        await rig.settles_at(a_2=ACTIVE, a_3=ACTIVE)
        assert value("kernelflume_attention_nodes_removed_total", reason="process_ended") == 1


async def test_a_removal_that_was_decided_on_another_state_does_nothing(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=1) as rig:
        await rig.settles_at(a_1=ACTIVE)
        node = rig.provider.nodes["a-1"]
        stale = Removal(
            node_id="a-1",
            incarnation=node.incarnation,
            state=NodeState.READY,
            reason=RemovalReason.ABANDONED,
            detail="seen before its publish",
        )
        before = await rig.outside.read()
        await rig.controller._upkeep.remove((stale,))
        assert await rig.outside.read() == before
        assert rig.provider.terminated == []


async def test_a_person_stops_the_policy_from_trying_again(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=1) as rig:
        await rig.settles_at(a_1=ACTIVE)
        await rig.scale("up", 2)
        rig.provider.takes_lease = False
        await rig.provider.kill("a-1")

        async def replacing() -> bool:
            return rig.book.running is not None

        await eventually(replacing)
        assert rig.book.running is not None
        operation_id = rig.book.running.operation_id
        rig.controller.cancel(operation_id)
        await rig.end(operation_id)
        await rig.settles_at(a_2=ACTIVE)
        assert rig.controller.target == 1


async def test_a_stray_draining_node_is_resumed_only_once(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=1) as rig:
        await rig.settles_at(a_1=ACTIVE)
        await rig.outside.publish((await rig.outside.read()).with_event(NodeEvent.DRAIN, "a-1"))
        await rig.settles_at(a_1=ACTIVE)
