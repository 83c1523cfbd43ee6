from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest
from tests.scaler_rig import WAIT_S, Rig, eventually, scaler_rig

from kernelflume.core.errors import (
    AlreadyExistsError,
    InvalidRequestError,
    LifecycleError,
    NotFoundError,
    UnavailableError,
)
from kernelflume.core.routing import NodeState, RoutingSnapshot
from kernelflume.scaler.operation import Phase, Result
from kernelflume.store.redis import RedisStore

if TYPE_CHECKING:
    from tests.valkey import ValkeyProcess

pytestmark = pytest.mark.redis

ACTIVE = NodeState.ACTIVE
SHORT_S = 1.5
"""Enough to come to what never happens, for a busy machine too."""


async def start_with_one(rig: Rig) -> None:
    await rig.settles_at(a_1=ACTIVE)


async def test_the_pool_starts_with_as_many_nodes_as_were_asked_for(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=2) as rig:
        await rig.settles_at(a_1=ACTIVE, a_2=ACTIVE)
        assert rig.book.newest is not None
        assert rig.book.newest.operation_id.startswith("target-")


async def test_nodes_are_prepared_by_every_weight_node_before_one_publish_makes_them_routable(
    valkey_url: str,
) -> None:
    async with scaler_rig(valkey_url, initial_target=1) as rig:
        await start_with_one(rig)
        weights = [await rig.add_weight("w-1"), await rig.add_weight("w-2")]
        operation = await rig.scale("up", 3)
        assert (operation.result, operation.reason) == (Result.SUCCEEDED, "")
        assert (operation.initial, operation.target) == (1, 3)
        assert operation.node_ids == ("a-2", "a-3")
        assert [span.phase for span in operation.history] == [
            Phase.LAUNCHING,
            Phase.PREWARMING,
            Phase.READY,
            Phase.PUBLISHING,
            Phase.DONE,
        ]
        assert await rig.states() == {"a-1": ACTIVE, "a-2": ACTIVE, "a-3": ACTIVE}
        for weight in weights:
            assert sorted(weight.prepared) == ["a-2", "a-3"]
        entry = (await rig.outside.read()).get("a-2")
        node = rig.provider.nodes["a-2"]
        assert (entry.name, entry.address, entry.capacity_tokens) == (node.name, node.address, 1000)

        async def adopted_by_all() -> bool:
            epoch = (await rig.outside.read()).epoch
            return all(weight.seen[-1].epoch == epoch for weight in weights)

        await eventually(adopted_by_all)
        for snapshot in weights[0].seen:  # never one of the two alone
            assert len(snapshot.in_state(ACTIVE)) in (1, 3)


async def test_a_refusal_to_prepare_rolls_back_and_the_next_try_works(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=1) as rig:
        await start_with_one(rig)
        good, bad = await rig.add_weight("w-1"), await rig.add_weight("w-2")
        bad.prepare_failure = (grpc.StatusCode.FAILED_PRECONDITION, "dtype differs")
        operation = await rig.scale("up", 2)
        assert operation.result is Result.FAILED
        assert f"weight node {bad.name} did not prepare a-2#" in operation.reason
        assert "dtype differs" in operation.reason
        assert operation.history[-2].phase is Phase.ROLLING_BACK
        assert await rig.states() == {"a-1": ACTIVE}
        assert rig.provider.terminated == ["a-2"]
        assert good.released == bad.released == ["a-2"]
        assert rig.controller.target == 1
        bad.prepare_failure = None
        assert (await rig.scale("again", 2)).result is Result.SUCCEEDED
        assert await rig.states() == {"a-1": ACTIVE, "a-3": ACTIVE}


async def test_a_weight_node_that_hangs_meets_the_deadline_twice_and_then_works(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=1) as rig:
        await start_with_one(rig)
        weight = await rig.add_weight()
        weight.hangs = True
        for attempt in ("first", "second"):
            operation = await rig.scale(attempt, 2, deadline_s=SHORT_S)
            assert operation.result is Result.FAILED
            assert f"weight node {weight.name} did not prepare" in operation.reason
            assert await rig.states() == {"a-1": ACTIVE}
        weight.hangs = False
        assert (await rig.scale("third", 2)).result is Result.SUCCEEDED
        assert await rig.states() == {"a-1": ACTIVE, "a-4": ACTIVE}


async def test_a_node_that_never_gets_ready_meets_the_deadline(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=1) as rig:
        await start_with_one(rig)
        rig.provider.takes_lease = False
        operation = await rig.scale("up", 2, deadline_s=SHORT_S)
        assert operation.result is Result.FAILED
        assert operation.reason == f"after {SHORT_S:g} s attention node a-2 has not taken its lease"
        assert [span.phase for span in operation.history] == [Phase.LAUNCHING, Phase.ROLLING_BACK, Phase.DONE]
        assert rig.provider.terminated == ["a-2"]


async def test_a_node_that_holds_its_lease_but_does_not_serve_is_not_ready(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=1) as rig:
        await start_with_one(rig)
        rig.provider.serves = False
        operation = await rig.scale("up", 2, deadline_s=SHORT_S)
        assert operation.result is Result.FAILED
        assert "attention node a-2 is not serving at 127.0.0.1:" in operation.reason
        await rig.begin("again", 2)

        async def launched() -> bool:
            return "a-3" in rig.provider.nodes

        await eventually(launched)
        assert rig.book.get("again").phase is Phase.LAUNCHING
        await rig.provider.nodes["a-3"].server.set_serving(serving=True)
        assert (await rig.end("again")).result is Result.SUCCEEDED


async def test_a_node_that_ends_at_once_fails_the_operation_with_its_last_words(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=1) as rig:
        await start_with_one(rig)
        rig.provider.ends_at_once = "ended with code 2: out of memory"
        operation = await rig.scale("up", 3)
        assert operation.result is Result.FAILED
        assert "attention node a-2" in operation.reason
        assert "ended with code 2: out of memory" in operation.reason
        assert sorted(rig.provider.terminated) == ["a-2", "a-3"]
        assert await rig.states() == {"a-1": ACTIVE}


async def test_a_node_that_dies_while_it_is_prepared_ends_the_wait(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=1) as rig:
        await start_with_one(rig)
        weight = await rig.add_weight()
        weight.hangs = True
        await rig.begin("up", 2)
        await rig.reach("up", Phase.PREWARMING)
        await rig.provider.kill("a-2")
        operation = await rig.end("up")
        assert operation.result is Result.FAILED
        assert "a-2 is lost: was ended by SIGKILL" in operation.reason
        assert await rig.states() == {"a-1": ACTIVE}


async def test_a_weight_node_that_dies_meanwhile_is_left_out(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=1) as rig:
        await start_with_one(rig)
        weight, dying = await rig.add_weight("w-1"), await rig.add_weight("w-2")
        dying.hangs = True
        await rig.begin("up", 2)
        await rig.reach("up", Phase.PREWARMING)
        await dying.die()
        assert (await rig.end("up")).result is Result.SUCCEEDED
        assert weight.prepared == ["a-2"]


async def test_a_weight_node_out_of_reach_that_keeps_its_lease_fails_the_operation(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=1, patience_s=0.1) as rig:
        await start_with_one(rig)
        weight = await rig.add_weight()
        await weight.server.stop(0)
        operation = await rig.scale("up", 2)
        assert operation.result is Result.FAILED
        assert f"weight node {weight.name} did not prepare" in operation.reason


class RacedStore(RedisStore):
    """Another writer publishes between this one's read and its publish, as often as there are races."""

    races = 0

    async def publish(self, snapshot: RoutingSnapshot, *, fencing_token: int | None = None) -> None:
        if self.races and snapshot.in_state(NodeState.PREWARMING, NodeState.READY, ACTIVE):
            self.races -= 1
            present = await self.read()
            await super().publish(RoutingSnapshot(epoch=present.epoch + 1, nodes=present.nodes))
        await super().publish(snapshot, fencing_token=fencing_token)


async def test_a_lost_publish_race_is_run_again_on_the_newer_table(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=1, store_class=RacedStore) as rig:
        await start_with_one(rig)
        before = (await rig.outside.read()).epoch
        assert isinstance(rig.store, RacedStore)
        rig.store.races = 5
        assert (await rig.scale("up", 2)).result is Result.SUCCEEDED
        assert await rig.states() == {"a-1": ACTIVE, "a-2": ACTIVE}
        assert rig.store.races == 0
        assert (await rig.outside.read()).epoch == before + 3 + 5


@pytest.mark.parametrize("phase", [Phase.LAUNCHING, Phase.PREWARMING])
async def test_a_scale_up_is_cancelled_before_its_publish(valkey_url: str, phase: Phase) -> None:
    async with scaler_rig(valkey_url, initial_target=1) as rig:
        await start_with_one(rig)
        rig.provider.takes_lease = phase is not Phase.LAUNCHING
        weight = await rig.add_weight()
        weight.hangs = True
        await rig.begin("up", 2)
        await rig.reach("up", phase)
        assert rig.controller.cancel("up").phase is Phase.ROLLING_BACK
        assert rig.controller.cancel("up").phase is Phase.ROLLING_BACK
        operation = await rig.end("up")
        assert (operation.result, operation.reason) == (Result.CANCELLED, "cancelled on request")
        assert rig.controller.cancel("up") == operation
        assert await rig.states() == {"a-1": ACTIVE}
        assert not {"a-2"} & rig.provider.nodes.keys()
        assert rig.controller.target == 1
        weight.hangs = False
        rig.provider.takes_lease = True
        assert (await rig.scale("again", 2)).result is Result.SUCCEEDED


async def test_a_request_sent_again_gets_the_same_operation(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=1) as rig:
        await start_with_one(rig)
        weight = await rig.add_weight()
        weight.hangs = True
        await rig.begin("up", 2)
        await rig.reach("up", Phase.PREWARMING)
        assert (await rig.begin("up", 2)).node_ids == ("a-2",)
        with pytest.raises(AlreadyExistsError, match="up exists and has target 2, not 3"):
            await rig.begin("up", 3)
        with pytest.raises(LifecycleError, match=r"operation up \(target 2\) is still prewarming"):
            await rig.begin("other", 3)
        rig.controller.cancel("up")
        ended = await rig.end("up")
        assert await rig.begin("up", 2) == ended


async def test_bad_requests_are_refused_and_change_nothing(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=2, minimum=2) as rig:
        await rig.settles_at(a_1=ACTIVE, a_2=ACTIVE)
        for target in (0, 1, 9):
            with pytest.raises(InvalidRequestError, match="attention_nodes must be from 2 to 8"):
                await rig.begin("bad", target)
        for operation_id in ("", "a" * 201, "two\nlines", "\x1b[2J"):
            with pytest.raises(InvalidRequestError, match="operation_id"):
                await rig.begin(operation_id, 3)
        for deadline_s in (-1.0, float("nan"), float("inf"), 1e308):
            with pytest.raises(InvalidRequestError, match="deadline_seconds"):
                await rig.begin("bad", 3, deadline_s=deadline_s)
        with pytest.raises(NotFoundError):
            rig.controller.cancel("bad")
        assert rig.controller.target == 2


async def test_a_target_that_is_met_is_done_at_once(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=1) as rig:
        await start_with_one(rig)
        operation = await rig.begin("same", 1)
        assert (operation.result, [span.phase for span in operation.history]) == (
            Result.SUCCEEDED,
            [Phase.DONE],
        )


async def test_without_the_store_a_request_fails_clearly_and_the_pool_survives_the_loss_of_all_data(
    valkey: ValkeyProcess,
) -> None:
    # Nodes that have not renewed their leases yet are not lost, however long they take.
    async with scaler_rig(valkey.url, initial_target=2, grace_s=WAIT_S) as rig:
        await rig.settles_at(a_1=ACTIVE, a_2=ACTIVE)
        before = await rig.outside.read()
        valkey.kill()
        with pytest.raises(UnavailableError, match=r"routing-table store .*: cannot read"):
            await rig.begin("up", 3)
        valkey.start()  # empty

        async def leads_again() -> bool:
            try:
                await rig.leadership._beat(rig.leadership._record)  # type: ignore[arg-type]
                return (await rig.outside.read()) == before
            except UnavailableError:
                return False

        await eventually(leads_again)
        assert (await rig.scale("up", 3)).result is Result.SUCCEEDED
        assert await rig.states() == {"a-1": ACTIVE, "a-2": ACTIVE, "a-3": ACTIVE}
        assert rig.provider.terminated == []


async def test_the_table_goes_on_after_the_epoch_of_its_readers(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, initial_target=1, runs=False) as rig:
        weight = await rig.add_weight()
        weight.adopts = False
        weight.load = type(weight.load)(adopted_epoch=41)
        await weight.beat()
        await rig.controller.look()
        assert (await rig.outside.read()).epoch >= 42
