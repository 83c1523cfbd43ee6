from __future__ import annotations

import asyncio

from kernelflume.router.watchdog import Watchdog


async def test_a_wait_without_end_is_noticed() -> None:
    expired = asyncio.Event()
    Watchdog(0.01, expired.set).arm()
    await asyncio.wait_for(expired.wait(), 20)


async def test_waits_that_end_are_not() -> None:
    expired = asyncio.Event()
    watchdog = Watchdog(0.01, expired.set)
    for _ in range(5):
        watchdog.arm()
        watchdog.disarm()
        await asyncio.sleep(0.02)
    assert not expired.is_set()
    watchdog.arm()
    watchdog.close()
    await asyncio.sleep(0.03)
    assert not expired.is_set()


async def test_a_new_wait_has_its_whole_time() -> None:
    expired = asyncio.Event()
    watchdog = Watchdog(3600, expired.set)
    watchdog.arm()
    watchdog.disarm()
    watchdog.arm()
    watchdog._look()
    assert not expired.is_set(), "the second wait has begun after the first look was planned"
    watchdog._look()
    assert expired.is_set()
    watchdog.close()
