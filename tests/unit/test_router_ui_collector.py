"""One collector for all viewers, which looks only while there are some."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import cast

import pytest
from tests.ui_sights import entry, sight

from kernelflume.core.errors import OverloadedError, UnavailableError
from kernelflume.router.latencies import RecentLatencies
from kernelflume.router.ui.collector import Collector
from kernelflume.router.ui.sight import Sight, SightReader
from kernelflume.runtime.clock import MonotonicClock


class Reader:
    """Gives one sight after the other, the last one again and again."""

    def __init__(self, *sights: Sight) -> None:
        self.sights = list(sights)
        self.num_reads = 0
        self.fault: Exception | None = None
        self.closed = False

    async def read(self, before: Sight, *, with_scaler: bool) -> Sight:
        self.num_reads += 1
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        return self.sights.pop(0) if len(self.sights) > 1 else self.sights[0]

    async def close(self) -> None:
        self.closed = True


def collector_of(reader: Reader, *, max_viewers: int = 2) -> Collector:
    clock = MonotonicClock()
    return Collector(
        cast("SightReader", reader),
        first_token=RecentLatencies(clock),
        between_tokens=RecentLatencies(clock),
        model="tiny",
        version="1",
        max_viewers=max_viewers,
        clock=clock,
        wall_time=lambda: 1000.0,
    )


async def test_nothing_is_read_while_nobody_looks() -> None:
    reader = Reader(sight(entry("a-1")))
    collector = collector_of(reader)
    await asyncio.sleep(0.05)
    assert reader.num_reads == 0
    collector.enter()
    async with aclosing(collector.watch()) as news:
        await anext(news)
    collector.leave()
    num_reads = reader.num_reads
    assert num_reads >= 1
    await asyncio.sleep(0.7)
    assert reader.num_reads == num_reads


async def test_all_viewers_share_one_look_and_get_only_what_is_new() -> None:
    reader = Reader(sight(entry("a-1")), sight(entry("a-1"), entry("a-2"), epoch=8))
    collector = collector_of(reader)
    collector.enter()
    collector.enter()
    async with aclosing(collector.watch()) as one, aclosing(collector.watch()) as other:
        first = await anext(one)
        assert first == await anext(other)
        assert set(first[1]) == {"cluster", "attention", "weight", "sequences", "latency", "events"}
        _, news = await anext(one)
        assert await anext(other) == (1000.0, news)
        assert len(json.loads(news["attention"])["nodes"]) == 2
        assert "sequences" not in news
        _, nothing = await anext(one)
        assert nothing == {}
    # Each asked three times. A machine that stands still for a second lets one more look pass.
    assert reader.num_reads == collector.num_looks <= 5
    await collector.close()
    assert reader.closed


async def test_a_look_that_fails_is_not_the_last() -> None:
    reader = Reader(sight(entry("a-1")))
    reader.fault = RuntimeError("nobody foresaw this")
    collector = collector_of(reader)
    collector.enter()
    async with asyncio.timeout(60), aclosing(collector.watch()) as news:
        assert "attention" in (await anext(news))[1]
    await collector.close()


async def test_viewers_are_bounded_and_a_place_is_given_back() -> None:
    collector = collector_of(Reader(sight()), max_viewers=1)
    collector.enter()
    with pytest.raises(OverloadedError, match="ui-max-viewers"):
        collector.enter()
    collector.leave()
    collector.enter()
    assert collector.num_viewers == 1
    await collector.close()


async def test_closing_ends_every_viewer_and_lets_none_in() -> None:
    collector = collector_of(Reader(sight()))
    collector.enter()

    async def look() -> int:
        return len([news async for news in collector.watch()])

    looking = asyncio.create_task(look())
    while not collector.num_looks:  # noqa: ASYNC110 - a state, not an event
        await asyncio.sleep(0.01)
    await collector.close()
    async with asyncio.timeout(60):
        assert await looking >= 1
    with pytest.raises(UnavailableError):
        collector.enter()


async def test_the_state_is_read_at_most_once_for_all_who_ask_at_once() -> None:
    reader = Reader(sight(entry("a-1")))
    collector = collector_of(reader)
    states = await asyncio.gather(*(collector.state() for _ in range(5)))
    assert reader.num_reads == 1
    assert states[0]["attention"]["nodes"][0]["id"] == "a-1"
    assert states[0]["time"] == 1000.0


async def test_the_state_is_refused_while_the_store_is_away() -> None:
    collector = collector_of(Reader(Sight(store_fault="routing-table store: no answer")))
    with pytest.raises(UnavailableError, match="no answer"):
        await collector.state()
