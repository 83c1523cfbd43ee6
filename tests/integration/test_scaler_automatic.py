"""The policy at work over a real store: it grows ahead, publishes at the watermark, shrinks, gives way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.scaler_rig import Rig, eventually, route_on, scaler_rig

from kernelflume.core.errors import AlreadyExistsError, InvalidRequestError, LifecycleError, NotFoundError
from kernelflume.core.leases import NodeLoad
from kernelflume.core.routing import NodeState
from kernelflume.scaler.operation import Origin, Phase, Result
from kernelflume.scaler.providers.settings import ProviderSection
from kernelflume.scaler.replay import decide_again
from kernelflume.scaler.scaling_policy import ScalingPolicy
from kernelflume.scaler.sizing import SizingReason

pytestmark = pytest.mark.redis

ACTIVE, READY = NodeState.ACTIVE, NodeState.READY
POLICY = ScalingPolicy(
    minimum_nodes=1,
    maximum_nodes=4,
    beta_memory=1.0,
    gamma=0.8,
    scale_down_cooldown_s=0.3,
    silence_s=0.3,
)
"""A node holds 1,000 tokens here."""
CALM = POLICY.model_copy(update={"scale_down_cooldown_s": 3600.0, "silence_s": 3600.0})
"""Takes no node away: for what a test prepares first, however long that takes."""

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kernelflume.scaler.operation import Operation


async def load(rig: Rig, *, held: int, tokens_per_s: float = 0.0, waiting: int = 0) -> None:
    """Have every attention node hold ``held`` tokens, and the weight node grow on the first.

    What is held is told before how it grows: a look in between must not see the new growth on the old load.
    """
    nodes = list(rig.provider.nodes.values())
    for node in nodes:
        node.load = NodeLoad(capacity_tokens=1000, used_tokens=held, reserved_tokens=held)
    for node in nodes:
        await node.beat()
    tails = (("a-1", 10),) if tokens_per_s else ()
    rig.weights[0].extra = {
        "tails": tails,
        "decode_step_s": 10 / tokens_per_s if tokens_per_s else 0.0,
        "waiting_tokens": waiting,
        "num_requests_running": 10 if held or waiting else 0,
    }
    await rig.weights[0].beat()


async def started(rig: Rig) -> None:
    await rig.add_weight()
    await rig.settles_at(a_1=ACTIVE)


def newest_is(rig: Rig, phase: Phase) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        return rig.book.newest is not None and rig.book.newest.phase is phase

    return holds


async def prewarmed(rig: Rig) -> Operation:
    """Start with one node, and load it so that the policy has prewarmed others; return its operation."""
    await started(rig)
    await load(rig, held=700, tokens_per_s=1e6)  # full before the next node could be there
    await eventually(newest_is(rig, Phase.READY))
    operation = rig.book.running
    assert operation is not None
    return operation


async def test_the_pool_grows_ahead_and_publishes_at_the_watermark(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, scaling=POLICY) as rig:
        operation = await prewarmed(rig)
        assert (operation.origin, operation.cause) == (Origin.POLICY, "horizon")
        assert READY in (await rig.states()).values()
        await load(rig, held=810, tokens_per_s=1.0)
        ended = await rig.end(operation.operation_id)
        assert ended.result is Result.SUCCEEDED
        assert list((await rig.states()).values()).count(ACTIVE) >= 2
        reasons = [record.sizing.reason for record in rig.controller.decisions.recent]
        assert SizingReason.HORIZON in reasons
        assert SizingReason.WATERMARK in reasons
        for record in rig.controller.decisions.recent:
            assert decide_again(record) == record.sizing


async def test_prompts_that_wait_are_met_at_once(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, scaling=POLICY) as rig:
        await started(rig)
        await load(rig, held=100, waiting=2500)
        await eventually(lambda: has_active(rig, 3))
        assert any(
            record.sizing.reason is SizingReason.FOOTPRINT for record in rig.controller.decisions.recent
        )


async def has_active(rig: Rig, count: int) -> bool:
    return list((await rig.states()).values()) == [ACTIVE] * count and rig.book.running is None


async def test_silence_goes_back_to_the_minimum(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=3, scaling=CALM) as rig:
        await rig.add_weight()
        await eventually(lambda: has_active(rig, 3))
        rig.controller.set_scaling(POLICY)
        await eventually(lambda: has_active(rig, 1))
        assert rig.controller.is_automatic
        assert SizingReason.SILENCE in [record.sizing.reason for record in rig.controller.decisions.recent]


async def test_prewarmed_nodes_are_given_up_when_the_load_goes_away(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, scaling=POLICY) as rig:
        operation = await prewarmed(rig)
        await load(rig, held=100, tokens_per_s=0.001)
        ended = await rig.end(operation.operation_id)
        assert (ended.result, "demand_gone" in ended.reason) == (Result.CANCELLED, True)
        await rig.settles_at(a_1=ACTIVE)
        assert rig.controller.is_automatic


async def test_a_drain_that_growth_overtakes_is_undone(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=2, scaling=CALM) as rig:
        weight = await rig.add_weight()
        await eventually(lambda: has_active(rig, 2))
        await rig.outside.put_routes(weight.name, {1: route_on("a-1", "a-2")})  # the drain waits for it
        rig.controller.set_scaling(POLICY)
        await eventually(newest_is(rig, Phase.DRAINING))
        operation = rig.book.running
        assert operation is not None
        await load(rig, held=990, tokens_per_s=1e6)
        ended = await rig.end(operation.operation_id)
        assert "overtaken" in ended.reason


async def test_a_person_s_number_holds_until_automatic_scaling_is_resumed(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, scaling=POLICY) as rig:
        await started(rig)
        await load(rig, held=100, tokens_per_s=1.0)
        await rig.scale("mine", 3)
        assert not rig.controller.is_automatic
        assert await has_active(rig, 3)
        await load(rig, held=0)
        rig.controller.resume()
        await eventually(lambda: has_active(rig, 1))


async def test_a_person_s_number_is_let_go_after_its_hold(valkey_url: str) -> None:
    policy = POLICY.model_copy(update={"manual_hold_s": 0.5})
    async with scaler_rig(valkey_url, scaling=policy) as rig:
        await started(rig)
        await rig.scale("mine", 2)
        await eventually(lambda: has_active(rig, 1))


async def test_an_operation_of_the_policy_gives_way_to_a_person(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, scaling=POLICY) as rig:
        own = await prewarmed(rig)
        ended = await rig.scale("mine", 2)
        assert (ended.result, ended.origin) == (Result.SUCCEEDED, Origin.PERSON)
        assert rig.book.get(own.operation_id).result is Result.CANCELLED


async def test_a_request_that_begins_nothing_leaves_the_policy_s_operation_alone(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, scaling=POLICY) as rig:
        await started(rig)
        await rig.scale("mine", 2)
        await load(rig, held=700, tokens_per_s=1e6)
        rig.controller.resume()
        await eventually(newest_is(rig, Phase.READY))
        own = rig.book.running
        assert own is not None
        options: dict[str, Any] = {"deadline_s": 0.0, "deadline_covers_drain": False}
        assert (await rig.begin("mine", 2)).result is Result.SUCCEEDED  # sent again
        with pytest.raises(AlreadyExistsError):
            await rig.begin("mine", 3)
        with pytest.raises(NotFoundError):
            await rig.controller.drain("d", ("a-9",), **options)
        with pytest.raises(LifecycleError, match="ready"):
            await rig.controller.drain("d", (own.node_ids[0],), **options)
        with pytest.raises(InvalidRequestError, match="minimum"):
            await rig.controller.drain("d", ("a-1", "a-2"), **options)
        assert rig.book.running == own
        assert rig.controller.is_automatic


async def test_a_person_may_drain_what_the_policy_drains(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, scaling=POLICY) as rig:
        await started(rig)
        await rig.scale("mine", 2)
        await rig.outside.put_routes(rig.weights[0].name, {1: route_on("a-2", "a-1")})
        rig.weights[0].extra = {"num_requests_running": 1}
        rig.controller.resume()
        await eventually(newest_is(rig, Phase.DRAINING))
        own = rig.book.running
        assert own is not None
        options: dict[str, Any] = {"deadline_s": 0.0, "deadline_covers_drain": False}
        await rig.controller.drain("d", own.node_ids, **options)
        assert rig.book.get(own.operation_id).result is Result.CANCELLED
        await rig.outside.put_routes(rig.weights[0].name, {}, ended=[1])
        assert (await rig.end("d")).result is Result.SUCCEEDED


async def test_cancelling_the_policy_s_operation_pauses_it(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, scaling=POLICY) as rig:
        own = await prewarmed(rig)
        rig.controller.cancel(own.operation_id)
        await rig.end(own.operation_id)
        await rig.settles_at(a_1=ACTIVE)
        assert not rig.controller.is_automatic


async def test_a_launch_that_fails_twice_is_tried_again(valkey_url: str) -> None:
    hasty = POLICY.model_copy(update={"provider": ProviderSection(launch_timeout_s=0.3)})
    async with scaler_rig(valkey_url, scaling=POLICY) as rig:
        await started(rig)
        rig.provider.takes_lease = False
        rig.controller.set_scaling(hasty)
        await load(rig, held=950, tokens_per_s=1e6)

        async def failed_twice() -> bool:
            sample = rig.metrics.registry.get_sample_value
            return (sample("kernelflume_scale_operations_total", {"result": "failed"}) or 0) >= 2

        await eventually(failed_twice)
        rig.provider.takes_lease = True
        rig.controller.set_scaling(POLICY)
        await eventually(lambda: has_active(rig, 4))


async def test_the_policy_s_launch_timeout_holds_from_the_next_operation_on(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=1) as rig:
        await rig.settles_at(a_1=ACTIVE)
        rig.provider.takes_lease = False
        rig.controller.set_scaling(
            ScalingPolicy.parse("{automatic: false, provider: {launch_timeout_s: 1.5}}")
        )
        operation = await rig.scale("up", 2)
        assert operation.reason == "after 1.5 s attention node a-2 has not taken its lease"


async def test_a_named_node_is_drained(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=3) as rig:
        await rig.settles_at(a_1=ACTIVE, a_2=ACTIVE, a_3=ACTIVE)
        options: dict[str, Any] = {"deadline_s": 0.0, "deadline_covers_drain": False}
        drain = rig.controller.drain
        with pytest.raises(InvalidRequestError, match="each once"):
            await drain("d", ("a-1", "a-1"), **options)
        with pytest.raises(InvalidRequestError, match="minimum"):
            await drain("d", ("a-1", "a-2", "a-3"), **options)
        with pytest.raises(NotFoundError):
            await drain("d", ("a-9",), **options)
        await drain("d", ("a-1",), **options)
        assert (await rig.end("d")).result is Result.SUCCEEDED
        assert await rig.states() == {"a-2": ACTIVE, "a-3": ACTIVE}
        assert (await drain("d", ("a-1",), **options)).done  # the same id again is the same operation
        with pytest.raises(AlreadyExistsError):
            await drain("d", ("a-2",), **options)


async def test_resume_is_refused_where_the_policy_is_not_automatic(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=1) as rig:
        await rig.settles_at(a_1=ACTIVE)
        with pytest.raises(LifecycleError, match="automatic"):
            rig.controller.resume()


async def test_weight_nodes_are_told_the_threshold(valkey_url: str) -> None:
    policy = POLICY.model_copy(update={"beta_memory": 0.5})
    async with scaler_rig(valkey_url, scaling=policy) as rig:
        await started(rig)

        async def told() -> bool:
            return (await rig.outside.read()).get("a-1").threshold_tokens == 500

        await eventually(told)
        rig.controller.set_scaling(POLICY)

        async def lifted() -> bool:
            return (await rig.outside.read()).get("a-1").threshold_tokens == 1000

        await eventually(lifted)


async def test_a_person_s_number_outlives_the_scaler_that_was_told_it(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, scaling=POLICY) as rig:
        await started(rig)
        await rig.scale("mine", 2)
        await eventually(lambda: keeps(rig, "2"))
        await rig.leadership.resign()
    async with scaler_rig(valkey_url, scaling=POLICY) as rig:
        await eventually(lambda: is_manual(rig))
        assert rig.controller.target == 2
        rig.controller.resume()
        await eventually(lambda: keeps(rig, ""))
        await rig.leadership.resign()
    async with scaler_rig(valkey_url, scaling=POLICY) as rig:
        await eventually(lambda: has_looked(rig))
        assert rig.controller.is_automatic


async def test_who_takes_over_living_nodes_goes_on_with_a_person_s_number(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=1) as rig:
        await rig.settles_at(a_1=ACTIVE)
        await rig.scale("mine", 2)
        await eventually(lambda: keeps(rig, "2"))
        await rig.leadership.resign()
        # A standby without a policy, which was told the same number at its start.
        async with scaler_rig(valkey_url, initial_target=1, grace_s=60) as standby:
            await eventually(lambda: has_state(standby))
            assert standby.controller.target == 2
            await standby.leadership.resign()
    async with scaler_rig(valkey_url, initial_target=1) as rig:  # nothing is left: it is a start
        await eventually(lambda: has_active(rig, 1))
        assert rig.controller.target == 1


@pytest.mark.parametrize("kept", ["many", "-1", "9" * 30, "2.5"])
async def test_a_kept_number_that_is_none_stops_nothing(kept: str, valkey_url: str) -> None:
    async with scaler_rig(valkey_url, scaling=POLICY, runs=False) as rig:
        await rig.outside.write_setting("held_attention_nodes", kept)
        await rig.controller.look()
        assert rig.controller.is_automatic
        assert await rig.outside.read_setting("held_attention_nodes") == ""


async def has_state(rig: Rig) -> bool:
    return rig.controller._policy_state is not None


async def keeps(rig: Rig, number: str) -> bool:
    return await rig.outside.read_setting("held_attention_nodes") == number


async def is_manual(rig: Rig) -> bool:
    return not rig.controller.is_automatic


async def has_looked(rig: Rig) -> bool:
    return rig.controller.sizing is not None
