from __future__ import annotations

from dataclasses import replace

import pytest
from tests.scaler_rig import Rig, eventually, route_on, scaler_rig

from kernelflume.core.errors import LifecycleError
from kernelflume.core.routing import NodeEvent, NodeState
from kernelflume.scaler.operation import Phase, Result

pytestmark = pytest.mark.redis

ACTIVE, DRAINING, RETIRED = NodeState.ACTIVE, NodeState.DRAINING, NodeState.RETIRED
SHORT_S = 1.5
"""Enough to come to what never happens, for a busy machine too."""


async def start_with_two(rig: Rig) -> None:
    await rig.settles_at(a_1=ACTIVE, a_2=ACTIVE)


async def drains(rig: Rig, node_id: str = "a-2") -> None:
    """Wait until ``node_id`` drains, and see it still draining a few looks later."""

    async def draining() -> bool:
        return (await rig.states()).get(node_id) is DRAINING

    await eventually(draining)
    for _ in range(5):
        await rig.store.wait_notice(timeout_s=0.05)
        assert await draining()


async def test_an_unused_node_is_drained_retired_released_and_ended(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=2) as rig:
        await start_with_two(rig)
        weight = await rig.add_weight()
        operation = await rig.scale("down", 1)
        assert (operation.result, operation.node_ids) == (Result.SUCCEEDED, ("a-2",))
        assert [span.phase for span in operation.history] == [
            Phase.DRAINING,
            Phase.RETIRING,
            Phase.RELEASING,
            Phase.DONE,
        ]
        assert await rig.states() == {"a-1": ACTIVE}
        assert rig.provider.terminated == ["a-2"]
        assert weight.released == ["a-2"]
        states = [entry.state for snapshot in weight.seen if (entry := snapshot.find("a-2"))]
        assert states[-2:] == [DRAINING, RETIRED]


async def test_a_drain_waits_for_routes_and_then_for_the_node_itself(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=2) as rig:
        await start_with_two(rig)
        weight = await rig.add_weight()
        victim = rig.provider.nodes["a-2"]
        victim.load = replace(victim.load, num_sequences=1)
        await rig.outside.put_routes(weight.name, {1: route_on("a-1", "a-2", "a-1"), 2: route_on("a-1")})
        await rig.begin("down", 1, deadline_s=0.01)  # which does not cover a drain
        await drains(rig)
        await rig.outside.put_routes(weight.name, {}, ended=[1])
        await drains(rig)
        assert rig.provider.terminated == []
        victim.load = replace(victim.load, num_sequences=0)
        assert (await rig.end("down")).result is Result.SUCCEEDED


async def test_a_drain_waits_for_every_weight_node_to_adopt(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=2) as rig:
        await start_with_two(rig)
        late = await rig.add_weight()
        late.adopts = False
        await rig.begin("down", 1)
        await drains(rig)
        late.adopts = True
        assert (await rig.end("down")).result is Result.SUCCEEDED


async def test_a_retired_node_lives_until_the_last_reader_lets_go(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=2) as rig:
        await start_with_two(rig)
        weight = await rig.add_weight()
        weight.release_refusal = "sequence 7 has ranges there"
        await rig.begin("down", 1)
        await rig.reach("down", Phase.RELEASING)
        with pytest.raises(LifecycleError, match="operation down is releasing: too late"):
            rig.controller.cancel("down")
        for _ in range(5):
            await rig.store.wait_notice(timeout_s=0.05)
            assert (await rig.states())["a-2"] is RETIRED
        assert rig.provider.terminated == []
        weight.release_refusal = None
        assert (await rig.end("down")).result is Result.SUCCEEDED
        assert rig.provider.terminated == ["a-2"]


async def test_a_reader_that_never_lets_go_does_not_keep_the_node_for_ever(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=2, release_s=1.0) as rig:
        await start_with_two(rig)
        weight = await rig.add_weight()
        weight.release_refusal = "sequence 7 has ranges there"
        operation = await rig.scale("down", 1)
        assert operation.result is Result.FAILED
        assert f"weight node {weight.name} has not released a-2#" in operation.reason
        assert "sequence 7 has ranges there" in operation.reason
        assert await rig.states() == {"a-1": ACTIVE}
        assert rig.provider.terminated == ["a-2"]
        assert rig.controller.target == 1  # it is gone all the same: nothing is started in its place


async def test_a_drain_is_cancelled_by_resuming_the_node(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=2) as rig:
        await start_with_two(rig)
        weight = await rig.add_weight()
        await rig.outside.put_routes(weight.name, {1: route_on("a-2")})
        await rig.begin("down", 1)
        await drains(rig)
        rig.controller.cancel("down")
        assert (await rig.end("down")).result is Result.CANCELLED
        await start_with_two(rig)
        assert rig.controller.target == 2
        assert rig.provider.terminated == []


async def test_a_deadline_that_covers_the_drain_resumes_the_node(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=2) as rig:
        await start_with_two(rig)
        weight = await rig.add_weight()
        await rig.outside.put_routes(weight.name, {5: route_on("a-1", "a-2")})
        operation = await rig.scale("down", 1, deadline_s=SHORT_S, deadline_covers_drain=True)
        assert operation.result is Result.FAILED
        assert operation.reason == f"after {SHORT_S:g} s sequence 5 of {weight.name} has ranges on a-2"
        assert await rig.states() == {"a-1": ACTIVE, "a-2": ACTIVE}


async def test_the_node_with_the_fewest_tokens_is_drained(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=3) as rig:
        await rig.settles_at(a_1=ACTIVE, a_2=ACTIVE, a_3=ACTIVE)
        for node_id, used_tokens in (("a-1", 10), ("a-2", 5), ("a-3", 20)):
            node = rig.provider.nodes[node_id]
            node.load = replace(node.load, used_tokens=used_tokens)
            await node.beat()
        assert (await rig.scale("down", 1)).node_ids == ("a-2", "a-1")
        assert await rig.states() == {"a-3": ACTIVE}


async def test_routes_of_a_dead_weight_node_do_not_hold_up_a_drain(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=2) as rig:
        await start_with_two(rig)
        await rig.outside.put_routes("w-9#dead", {1: route_on("a-2")})
        assert (await rig.scale("down", 1)).result is Result.SUCCEEDED
        assert await rig.outside.routes() == {}


async def test_a_draining_node_that_is_lost_is_removed_and_the_operation_goes_on(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=2) as rig:
        await start_with_two(rig)
        weight = await rig.add_weight()
        await rig.outside.put_routes(weight.name, {1: route_on("a-2")})
        await rig.begin("down", 1)
        await drains(rig)
        await rig.provider.kill("a-2")
        assert (await rig.end("down")).result is Result.SUCCEEDED
        await rig.settles_at(a_1=ACTIVE)


async def test_a_node_that_somebody_else_resumed_is_not_ended(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=2) as rig:
        await start_with_two(rig)
        weight = await rig.add_weight()
        await rig.outside.put_routes(weight.name, {1: route_on("a-2")})
        await rig.begin("down", 1)
        await drains(rig)
        await rig.controller._upkeep.resume(("a-2",))  # the policy leaves an operation's nodes alone
        assert (await rig.states())["a-2"] is DRAINING
        await rig.outside.publish((await rig.outside.read()).with_event(NodeEvent.RESUME, "a-2"))
        operation = await rig.end("down")
        assert operation.result is Result.FAILED
        assert operation.reason == "attention node a-2 is active and does not drain any more"
        assert rig.provider.terminated == []


async def test_the_last_active_node_is_never_drained(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=2) as rig:
        await start_with_two(rig)
        weight = await rig.add_weight()
        await rig.outside.put_routes(weight.name, {1: route_on("a-2")})
        await rig.begin("down", 1)
        await drains(rig)
        await rig.provider.kill("a-1")
        operation = await rig.end("down")
        assert operation.result is Result.FAILED
        assert "nodes were lost meanwhile" in operation.reason
        await rig.settles_at(a_2=ACTIVE)  # which is what was asked for
        assert rig.controller.target == 1
