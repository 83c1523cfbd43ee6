"""A weight node follows the routing table forwards, and never back."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

from tests.table_entries import entry

from kernelflume.core.routing import RoutingSnapshot
from kernelflume.store.memory import MemoryServer, MemoryStore
from kernelflume.wnode.membership import MembershipFollower
from kernelflume.wnode.messages import Adopt

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kernelflume.wnode.endpoints import Endpoints
    from kernelflume.wnode.messages import Command

POLL_S = 0.005


class PreparedEndpoints:
    """Has a warm path to every node."""

    def is_prepared(self, _name: str) -> bool:
        return True


def table(epoch: int) -> RoutingSnapshot:
    return RoutingSnapshot(epoch=epoch, nodes=(entry("a-1"),))


class Swapped(MemoryStore):
    """A store whose server can be replaced by an empty one, as by a restart without data."""

    def __init__(self) -> None:
        super().__init__(MemoryServer())
        self.present = RoutingSnapshot()

    async def read(self) -> RoutingSnapshot:
        return self.present


@asynccontextmanager
async def following(store: Swapped) -> AsyncIterator[tuple[MembershipFollower, list[int]]]:
    adopted: list[int] = []

    def send(command: Command) -> None:
        assert isinstance(command, Adopt)
        adopted.append(command.snapshot.epoch)

    follower = MembershipFollower(store, cast("Endpoints", PreparedEndpoints()), send, poll_interval_s=POLL_S)
    task = asyncio.create_task(follower.run())
    try:
        yield follower, adopted
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def wait_adopted(adopted: list[int], epoch: int) -> None:
    async with asyncio.timeout(60):
        while epoch not in adopted:  # noqa: ASYNC110 - filled by another task
            await asyncio.sleep(POLL_S)


async def test_a_store_that_lost_its_data_takes_no_node_away() -> None:
    store = Swapped()
    store.present = table(6)
    async with following(store) as (follower, adopted):
        await wait_adopted(adopted, 6)
        store.present = RoutingSnapshot()
        await asyncio.sleep(10 * POLL_S)
        assert adopted == [6]
        assert follower.snapshot == table(6)
        store.present = table(6)  # written back
        await asyncio.sleep(10 * POLL_S)
        assert adopted == [6]
        store.present = table(7)
        await wait_adopted(adopted, 7)
        assert adopted == [6, 7]


async def test_an_empty_table_is_one_at_the_start() -> None:
    async with following(Swapped()) as (_follower, adopted):
        await wait_adopted(adopted, 0)
