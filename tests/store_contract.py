"""The contract of ``RoutingStore``, checked against the in-memory twin and the real one alike.

A test module subclasses ``StoreContract`` and provides the fixture ``open_store``: a callable that opens one
more handle on the same store.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from kernelflume.core.errors import ConflictError, EpochConflictError
from kernelflume.core.leases import LeaseRecord, NodeKind, NodeLoad
from kernelflume.core.profile import StepTimes
from kernelflume.core.ranges import SequenceRoute
from kernelflume.core.routing import AttentionNodeEntry, NodeEvent, NodeState, RoutingSnapshot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kernelflume.store.base import RoutingStore

    OpenStore = Callable[[], RoutingStore]

LONG_S = 600.0
NOTICE_S = 60.0
NO_NOTICE_S = 0.05


def entry(node_id: str, state: NodeState = NodeState.PREWARMING) -> AttentionNodeEntry:
    return AttentionNodeEntry(
        node_id=node_id,
        incarnation="0a",
        address="127.0.0.1:1",
        state=state,
        capacity_tokens=100,
        threshold_tokens=90,
    )


def lease(node_id: str, incarnation: str = "0a", kind: NodeKind = NodeKind.ATTENTION) -> LeaseRecord:
    load = NodeLoad(
        adopted_epoch=3,
        prepared_nodes=("a-1#0a",),
        capacity_tokens=100,
        used_tokens=7,
        num_sequences=2,
        tails=(("a-1", 2),),
        step_times=StepTimes(
            rows=2,
            step_s=0.04,
            projection_s=3e-4,
            attention_s=1e-4,
            post_attention_s=5e-4,
            overhead_s=0.01,
        ),
        scan_bytes_per_s=4.5e9,
    )
    return LeaseRecord(kind=kind, node_id=node_id, incarnation=incarnation, address="127.0.0.1:1", load=load)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(NOTICE_S):
        while not await condition():  # noqa: ASYNC110 - the condition is another process's
            await asyncio.sleep(0.01)


class StoreContract:
    async def test_an_empty_store_is_at_epoch_zero(self, open_store: OpenStore) -> None:
        assert await open_store().read() == RoutingSnapshot()

    async def test_a_publish_is_read_back_by_every_handle(self, open_store: OpenStore) -> None:
        writer, reader = open_store(), open_store()
        snapshot = RoutingSnapshot().with_node(entry("a-1"))
        await writer.publish(snapshot)
        assert await reader.read() == snapshot
        snapshot = snapshot.with_node(entry("a-2"))
        await reader.publish(snapshot)
        assert await writer.read() == snapshot

    async def test_only_one_of_two_publishes_on_the_same_epoch_wins(self, open_store: OpenStore) -> None:
        first, second = open_store(), open_store()
        won = RoutingSnapshot().with_node(entry("a-1"))
        await first.publish(won)
        with pytest.raises(EpochConflictError) as raised:
            await second.publish(RoutingSnapshot().with_node(entry("a-2")))
        assert (raised.value.expected, raised.value.actual) == (0, 1)
        with pytest.raises(EpochConflictError):  # an equal snapshot is no excuse: the other one published it
            await second.publish(won)
        assert await second.read() == won

    async def test_a_publish_may_not_skip_epochs(self, open_store: OpenStore) -> None:
        store = open_store()
        with pytest.raises(EpochConflictError):
            await store.publish(RoutingSnapshot(epoch=2))
        assert (await store.read()).epoch == 0

    async def test_restore_writes_over_older_epochs_only(self, open_store: OpenStore) -> None:
        store = open_store()
        live = RoutingSnapshot(epoch=7, nodes=(entry("a-1", NodeState.ACTIVE),))
        await store.restore(live)
        assert await store.read() == live
        for epoch in (6, 7):
            with pytest.raises(EpochConflictError) as raised:
                await store.restore(RoutingSnapshot(epoch=epoch))
            assert raised.value.actual == 7
        await store.publish(live.with_event(NodeEvent.DRAIN, "a-1"))
        assert (await store.read()).epoch == 8

    async def test_a_notice_wakes_a_waiting_handle(self, open_store: OpenStore) -> None:
        writer, reader = open_store(), open_store()
        await reader.read()
        assert not await reader.wait_notice(timeout_s=NO_NOTICE_S)
        waiting = asyncio.create_task(reader.wait_notice(timeout_s=NOTICE_S))
        await asyncio.sleep(0)
        await writer.publish(RoutingSnapshot().with_node(entry("a-1")))
        assert await waiting
        assert (await reader.read()).epoch == 1
        assert not await reader.wait_notice(timeout_s=NO_NOTICE_S)

    async def test_a_publish_between_read_and_wait_is_not_missed(self, open_store: OpenStore) -> None:
        writer, reader = open_store(), open_store()
        await reader.read()
        await writer.publish(RoutingSnapshot().with_node(entry("a-1")))
        assert await reader.wait_notice(timeout_s=NOTICE_S)

    async def test_a_lease_lives_until_it_is_released(self, open_store: OpenStore) -> None:
        store, reader = open_store(), open_store()
        assert await reader.living(NodeKind.ATTENTION) == []
        await store.renew(lease("a-2"), ttl_s=LONG_S)
        await store.renew(lease("a-1"), ttl_s=LONG_S)
        await store.renew(lease("w-1", kind=NodeKind.WEIGHT), ttl_s=LONG_S)
        assert await reader.living(NodeKind.ATTENTION) == [lease("a-1"), lease("a-2")]
        assert await reader.living(NodeKind.WEIGHT) == [lease("w-1", kind=NodeKind.WEIGHT)]
        await store.release(NodeKind.ATTENTION, "a-1", "0a")
        await store.release(NodeKind.ATTENTION, "a-1", "0a")
        assert await reader.living(NodeKind.ATTENTION) == [lease("a-2")]

    async def test_a_lease_ends_with_its_time_unless_renewed(self, open_store: OpenStore) -> None:
        store = open_store()
        await store.renew(lease("a-1"), ttl_s=0.02)
        await store.renew(lease("a-2"), ttl_s=0.02)
        await store.renew(lease("a-2"), ttl_s=LONG_S)

        async def only_the_renewed_one() -> bool:
            return await store.living(NodeKind.ATTENTION) == [lease("a-2")]

        await eventually(only_the_renewed_one)

    async def test_an_old_incarnation_cannot_release_its_successors_lease(
        self, open_store: OpenStore
    ) -> None:
        store = open_store()
        await store.renew(lease("a-1", "0a"), ttl_s=LONG_S)
        await store.renew(lease("a-1", "0b"), ttl_s=LONG_S)
        await store.release(NodeKind.ATTENTION, "a-1", "0a")
        assert await store.living(NodeKind.ATTENTION) == [lease("a-1", "0b")]

    async def test_routes_are_written_replaced_and_dropped(self, open_store: OpenStore) -> None:
        store, reader = open_store(), open_store()
        short = SequenceRoute().with_tail("a-1").extended(5)
        long = short.with_tail("a-2").extended(3)
        assert await reader.routes() == {}
        await store.put_routes("w-1#0a", {1: short, 2**63: long})
        await store.put_routes("w-2#0b", {1: long})
        assert await reader.routes() == {"w-1#0a": {1: short, 2**63: long}, "w-2#0b": {1: long}}
        assert await reader.routed_weight_nodes() == {"w-1#0a", "w-2#0b"}
        await store.put_routes("w-1#0a", {1: long}, ended=[2**63, 99])
        assert await reader.routes() == {"w-1#0a": {1: long}, "w-2#0b": {1: long}}
        await store.put_routes("w-1#0a", {}, ended=[1])
        assert await reader.routes() == {"w-2#0b": {1: long}}
        await store.drop_weight_node("w-2#0b")
        await store.drop_weight_node("w-1#0a")
        await store.drop_weight_node("never-there")
        assert await reader.routed_weight_nodes() == frozenset()
        assert await reader.routes() == {}

    async def test_one_candidate_leads_and_the_token_grows_with_each_leader(
        self, open_store: OpenStore
    ) -> None:
        first, second = open_store(), open_store()
        token = await first.lead("s-1", ttl_s=LONG_S)
        assert token is not None
        assert await first.lead("s-1", ttl_s=LONG_S) == token
        assert await second.lead("s-2", ttl_s=LONG_S) is None
        await second.resign("s-2")
        assert await second.lead("s-2", ttl_s=LONG_S) is None
        await first.resign("s-1")
        following = await second.lead("s-2", ttl_s=LONG_S)
        assert following is not None
        assert following > token

    async def test_leadership_ends_with_its_time(self, open_store: OpenStore) -> None:
        first, second = open_store(), open_store()
        token = await first.lead("s-1", ttl_s=0.02)
        assert token is not None

        async def second_leads() -> bool:
            following = await second.lead("s-2", ttl_s=LONG_S)
            return following is not None and following > token

        await eventually(second_leads)

    async def test_an_old_leader_cannot_publish(self, open_store: OpenStore) -> None:
        store = open_store()
        old = await store.lead("s-1", ttl_s=LONG_S)
        await store.resign("s-1")
        new = await store.lead("s-2", ttl_s=LONG_S)
        snapshot = RoutingSnapshot().with_node(entry("a-1"))
        for write in (store.publish, store.restore):
            with pytest.raises(ConflictError, match="fencing token") as raised:
                await write(snapshot, fencing_token=old)
            assert not isinstance(raised.value, EpochConflictError)
        assert (await store.read()).epoch == 0
        await store.publish(snapshot, fencing_token=new)
        assert await store.read() == snapshot

    async def test_settings_are_kept_by_name_and_only_by_the_leader(self, open_store: OpenStore) -> None:
        first, second = open_store(), open_store()
        assert await first.read_setting("a") is None
        await first.write_setting("a", "one")
        await first.write_setting("b", "")
        assert (await second.read_setting("a"), await second.read_setting("b")) == ("one", "")
        old = await first.lead("s-1", ttl_s=LONG_S)
        await first.write_setting("a", "two", fencing_token=old)
        await first.resign("s-1")
        await second.lead("s-2", ttl_s=LONG_S)
        with pytest.raises(ConflictError, match="fencing token"):
            await first.write_setting("a", "three", fencing_token=old)
        assert await second.read_setting("a") == "two"

    async def test_a_setting_with_a_time_to_live_vanishes(self, open_store: OpenStore) -> None:
        store = open_store()
        await store.write_setting("a", "one", ttl_s=LONG_S)
        await store.write_setting("b", "one", ttl_s=LONG_S)
        assert await store.read_setting("a") == "one"
        await store.write_setting("a", "two", ttl_s=0.02)
        await store.write_setting("b", "two")

        async def vanished() -> bool:
            return await store.read_setting("a") is None

        await eventually(vanished)
        assert await store.read_setting("b") == "two"

    async def test_api_keys_are_kept_and_forgotten_by_id(self, open_store: OpenStore) -> None:
        first, second = open_store(), open_store()
        assert await first.read_api_keys() == {}
        await first.put_api_key("a", "one")
        await first.put_api_key("b", "two")
        await second.put_api_key("a", "three")
        assert await second.read_api_keys() == {"a": "three", "b": "two"}
        assert await second.drop_api_key("a")
        assert not await first.drop_api_key("a")
        assert await first.read_api_keys() == {"b": "two"}
