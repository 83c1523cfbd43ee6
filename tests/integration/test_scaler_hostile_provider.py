"""Providers that hang, raise what no contract names, and turn a cancellation into an error."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.scaler_rig import WAIT_S, FakeProvider, scaler_rig

from kernelflume.core.errors import UnavailableError
from kernelflume.core.routing import NodeState
from kernelflume.scaler.operation import Phase, Result
from kernelflume.scaler.providers import standby
from kernelflume.scaler.providers.standby import StandbyProvider

if TYPE_CHECKING:
    from collections.abc import Collection

    from kernelflume.store.base import RoutingStore

pytestmark = pytest.mark.redis

ACTIVE = NodeState.ACTIVE


class HostileProvider(FakeProvider):
    """Works like the one it is, unless told otherwise."""

    def __init__(self, store: RoutingStore) -> None:
        super().__init__(store)
        self.hides_cancellation = False
        self.has_hung = asyncio.Event()
        self.hangs_at_end = False
        self.raises_at_end = False
        self.raises_at_launch = False

    async def launch(self, taken: Collection[str]) -> str:
        if self.raises_at_launch:
            raise RuntimeError("the cloud is gone")
        if self.hides_cancellation:
            self.has_hung.set()
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                raise UnavailableError("interrupted") from None
        return await super().launch(taken)

    async def terminate(self, node_id: str, *, grace_s: float) -> None:
        if self.raises_at_end:
            raise RuntimeError("the cloud is gone")
        if self.hangs_at_end:
            await asyncio.sleep(600)
        await super().terminate(node_id, grace_s=grace_s)


async def test_an_operation_that_fails_as_it_is_cancelled_is_rolled_back(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, make_provider=HostileProvider, initial_target=1) as rig:
        await rig.settles_at(a_1=ACTIVE)
        rig.provider.hides_cancellation = True
        await rig.begin("up", 2)
        async with asyncio.timeout(WAIT_S):
            await rig.provider.has_hung.wait()
        rig.controller.cancel("up")
        ended = await rig.end("up")
        assert (ended.result, ended.reason) == (Result.CANCELLED, "cancelled on request")
        rig.provider.hides_cancellation = False
        assert (await rig.scale("again", 2)).result is Result.SUCCEEDED


async def test_a_node_that_the_provider_cannot_end_holds_nothing_up(valkey_url: str) -> None:
    async with scaler_rig(
        valkey_url, make_provider=HostileProvider, initial_target=3, terminate_s=0.1
    ) as rig:
        await rig.settles_at(a_1=ACTIVE, a_2=ACTIVE, a_3=ACTIVE)
        rig.provider.hangs_at_end = True
        assert (await rig.scale("down", 2)).result is Result.SUCCEEDED
        rig.provider.hangs_at_end, rig.provider.raises_at_end = False, True
        assert (await rig.scale("further", 1)).result is Result.SUCCEEDED
        assert len(await rig.states()) == 1
        rig.provider.takes_lease = False
        await rig.begin("up", 2)
        await rig.reach("up", Phase.LAUNCHING)
        rig.controller.cancel("up")
        assert (await rig.end("up")).result is Result.CANCELLED


async def test_an_unexpected_fault_at_a_launch_ends_the_operation_only(valkey_url: str) -> None:
    async with scaler_rig(valkey_url, make_provider=HostileProvider, initial_target=1) as rig:
        await rig.settles_at(a_1=ACTIVE)
        rig.provider.raises_at_launch = True
        failed = await rig.scale("up", 2)
        assert (failed.result, failed.reason) == (Result.FAILED, "the cloud is gone")
        rig.provider.raises_at_launch = False
        assert (await rig.scale("again", 2)).result is Result.SUCCEEDED


async def test_an_unexpected_fault_at_a_standby_ends_nothing(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "_RETRY_S", 0.01)

    async def none_taken() -> frozenset[str]:
        return frozenset()

    async with scaler_rig(valkey_url, make_provider=HostileProvider) as rig:
        pool = StandbyProvider(rig.provider, 1)
        rig.provider.raises_at_launch = True
        keeping = asyncio.create_task(pool.keep(none_taken, grace_s=1))
        await asyncio.sleep(0.1)
        assert not keeping.done()
        rig.provider.raises_at_launch = False
        async with asyncio.timeout(WAIT_S):
            while not pool.standby:  # noqa: ASYNC110 - filled by another task
                await asyncio.sleep(0.01)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
