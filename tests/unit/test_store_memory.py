from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.store_contract import StoreContract, entry, lease

from kernelflume.core.errors import UnavailableError
from kernelflume.core.leases import NodeKind
from kernelflume.core.routing import RoutingSnapshot
from kernelflume.runtime.clock import ManualClock
from kernelflume.store.memory import MemoryServer, MemoryStore

if TYPE_CHECKING:
    from tests.store_contract import OpenStore


@pytest.fixture
def open_store() -> OpenStore:
    server = MemoryServer()
    return lambda: MemoryStore(server)


class TestMemoryStore(StoreContract):
    pass


async def test_leases_and_leadership_end_by_the_clock_that_was_given() -> None:
    clock = ManualClock()
    store = MemoryStore(MemoryServer(clock))
    await store.renew(lease("a-1"), ttl_s=5)
    await store.lead("s-1", ttl_s=5)
    clock.advance(4.9)
    assert await store.living(NodeKind.ATTENTION) == [lease("a-1")]
    assert await store.lead("s-2", ttl_s=5) is None
    clock.advance(0.2)
    assert await store.living(NodeKind.ATTENTION) == []
    assert await store.lead("s-2", ttl_s=5) == 2


async def test_an_outage_makes_every_call_fail_but_the_wait() -> None:
    server = MemoryServer()
    store = MemoryStore(server)
    server.reachable = False
    for call in (
        store.read(),
        store.publish(RoutingSnapshot(epoch=1)),
        store.living(NodeKind.WEIGHT),
        store.routes(),
        store.lead("s-1", ttl_s=1),
    ):
        with pytest.raises(UnavailableError, match="cannot be reached"):
            await call
    assert not await store.wait_notice(timeout_s=0.001)


async def test_lost_data_is_noticed_by_the_next_read_and_can_be_restored() -> None:
    server = MemoryServer()
    store = MemoryStore(server)
    live = RoutingSnapshot().with_node(entry("a-1"))
    await store.publish(live)
    server.lose_data()
    assert (await store.read()).epoch == 0
    await store.restore(live)
    assert await store.read() == live
    await store.close()
