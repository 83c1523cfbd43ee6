"""Reads and edits of the routing table that cross each other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.table_entries import entry

from kernelflume.core.leases import LeaseRecord, NodeKind
from kernelflume.core.routing import NodeState, RoutingSnapshot
from kernelflume.runtime.clock import MonotonicClock
from kernelflume.scaler.leader import Leadership
from kernelflume.scaler.table import Table
from kernelflume.store.memory import MemoryServer, MemoryStore

if TYPE_CHECKING:
    import pytest

ENTRY = entry("a-1", NodeState.PREWARMING)


class SlowStore(MemoryStore):
    """Answers a read late: with what was there when it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()
        self.answers.set()

    async def read(self) -> RoutingSnapshot:
        snapshot = await super().read()
        self.asked.set()
        await self.answers.wait()
        return snapshot


RECORD = LeaseRecord(kind=NodeKind.SCALER, node_id="s-1", incarnation="0", address="h:1")


async def make_table(store: MemoryStore) -> tuple[Table, Leadership]:
    clock = MonotonicClock()
    leadership = Leadership(store, clock, ttl_s=60)
    await leadership.acquire(RECORD, contact_timeout_s=1)
    return Table(store, leadership, clock), leadership


async def test_a_read_that_an_edit_overtakes_is_no_loss(caplog: pytest.LogCaptureFixture) -> None:
    store = SlowStore()
    table, _ = await make_table(store)
    await table.edit(lambda snapshot: snapshot.with_node(ENTRY))
    store.asked.clear()
    store.answers.clear()
    reading = asyncio.create_task(table.read())
    await store.asked.wait()
    late, store.answers = store.answers, asyncio.Event()
    store.answers.set()
    edited = await table.edit(lambda snapshot: snapshot.without("a-1"))
    late.set()
    assert await reading == edited
    assert await table.read() == edited
    assert "lost" not in caplog.text


async def test_a_table_that_the_store_lost_is_written_back(caplog: pytest.LogCaptureFixture) -> None:
    server = MemoryServer()
    table, leadership = await make_table(MemoryStore(server))
    edited = await table.edit(lambda snapshot: snapshot.with_node(ENTRY))
    server.lose_data()
    await leadership.acquire(RECORD, contact_timeout_s=1)
    assert await table.read() == edited
    assert await MemoryStore(server).read() == edited
    assert "lost" in caplog.text
