"""However many watch the topology, it is read once."""

from __future__ import annotations

import asyncio

from kernelflume.core.errors import UnavailableError
from kernelflume.rpc.v1 import scaler_pb2
from kernelflume.runtime.clock import ManualClock
from kernelflume.scaler.topology_feed import TopologyFeed


class Source:
    """Counts how often it is read."""

    def __init__(self) -> None:
        self.count = 0
        self.fault: Exception | None = None
        self.go = asyncio.Event()
        self.go.set()

    async def read(self) -> scaler_pb2.Topology:
        self.count += 1
        await self.go.wait()
        if self.fault is not None:
            raise self.fault
        return scaler_pb2.Topology(epoch=self.count)


async def test_many_share_one_reading_until_it_is_old() -> None:
    source, clock = Source(), ManualClock()
    feed = TopologyFeed(source.read, clock, max_age_s=0.05)
    answers = await asyncio.gather(*(feed.topology() for _ in range(200)))
    assert {answer.epoch for answer in answers} == {1}
    clock.advance(0.04)
    assert (await feed.topology()).epoch == 1
    clock.advance(0.02)
    assert (await feed.topology()).epoch == 2
    assert source.count == 2


async def test_one_that_goes_away_takes_the_reading_from_nobody() -> None:
    source = Source()
    source.go.clear()
    feed = TopologyFeed(source.read, ManualClock(), max_age_s=0.05)
    gone, stays = asyncio.create_task(feed.topology()), asyncio.create_task(feed.topology())
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    source.go.set()
    assert (await stays).epoch == 1


async def test_a_fault_is_told_to_all_and_the_next_reading_is_a_new_one() -> None:
    source, clock = Source(), ManualClock()
    source.fault = UnavailableError("no store")
    feed = TopologyFeed(source.read, clock, max_age_s=0.05)
    answers = await asyncio.gather(*(feed.topology() for _ in range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [UnavailableError] * 3
    source.fault = None
    clock.advance(0.1)
    assert (await feed.topology()).epoch == 2
