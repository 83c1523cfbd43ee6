"""Standby nodes: taken first, replaced, and never in the table before they are wanted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.scaler_rig import FakeProvider, Rig, eventually, scaler_rig

from kernelflume.core.routing import NodeState
from kernelflume.scaler.operation import Result
from kernelflume.scaler.providers.standby import StandbyProvider

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kernelflume.store.base import RoutingStore

pytestmark = pytest.mark.redis

ACTIVE = NodeState.ACTIVE


def with_standby(store: RoutingStore) -> StandbyProvider:
    return StandbyProvider(FakeProvider(store), 2)


async def none_taken() -> frozenset[str]:
    return frozenset()


@pytest.fixture
async def rig(valkey_url: str) -> AsyncIterator[Rig]:
    async with scaler_rig(valkey_url, make_provider=with_standby, initial_target=1) as rig:
        await rig.settles_at(a_1=ACTIVE)
        keeping = asyncio.create_task(rig.provider.keep(none_taken, grace_s=1))
        await eventually(lambda: stand_by(rig, 2))
        yield rig
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def stand_by(rig: Rig, count: int) -> bool:
    return len(rig.provider.standby) == count


async def test_a_scale_up_takes_the_oldest_and_others_take_their_place(rig: Rig) -> None:
    assert rig.provider.standby == ("a-2", "a-3")
    assert await rig.states() == {"a-1": ACTIVE}
    operation = await rig.scale("up", 2)
    assert (operation.result, operation.node_ids) == (Result.SUCCEEDED, ("a-2",))
    assert await rig.states() == {"a-1": ACTIVE, "a-2": ACTIVE}
    await eventually(lambda: stand_by(rig, 2))
    assert rig.provider.standby == ("a-3", "a-4")


async def test_more_than_stand_by_are_started(rig: Rig) -> None:
    operation = await rig.scale("up", 5)
    assert operation.result is Result.SUCCEEDED
    assert len(await rig.states()) == 5


async def test_one_that_ended_is_not_handed_out(rig: Rig) -> None:
    inner = rig.provider._provider
    await inner.kill("a-2")
    operation = await rig.scale("up", 2)
    assert (operation.result, operation.node_ids) == (Result.SUCCEEDED, ("a-3",))


async def test_the_end_of_the_provider_ends_those_that_stand_by(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, make_provider=with_standby, initial_target=1) as rig:
        await rig.settles_at(a_1=ACTIVE)
        keeping = asyncio.create_task(rig.provider.keep(none_taken, grace_s=1))
        await eventually(lambda: stand_by(rig, 2))
        keeping.cancel()
        nodes = list(rig.provider._provider.nodes.values())
        assert len(nodes) == 3
    assert all(node._beating is None for node in nodes)


async def test_more_or_fewer_stand_by_once_that_is_changed(rig: Rig) -> None:
    rig.provider.set_num_standby(3)
    await eventually(lambda: stand_by(rig, 3))
    rig.provider.set_num_standby(1)
    await eventually(lambda: stand_by(rig, 1))
    assert rig.provider.standby == ("a-2",)
    inner = rig.provider._provider

    async def ended() -> bool:
        return sorted(inner.terminated) == ["a-3", "a-4"]

    await eventually(ended)
    assert await rig.states() == {"a-1": ACTIVE}
