from __future__ import annotations

import asyncio

import pytest

from kernelflume.router.eager import within


async def test_what_waits_for_nothing_is_done_at_once() -> None:
    async def at_once() -> int:
        return 5

    assert await within(0.0, at_once()) == 5


async def test_an_error_that_comes_at_once_is_raised() -> None:
    async def fails() -> None:
        raise ValueError("at once")

    with pytest.raises(ValueError, match="at once"):
        await within(1.0, fails())


async def test_what_waits_goes_on_through_all_of_its_waits() -> None:
    first, second = asyncio.Event(), asyncio.Event()

    async def waits() -> list[str]:
        await first.wait()
        try:
            async with asyncio.timeout(0.001):  # one of its own, in the same task
                await asyncio.Event().wait()
        except TimeoutError:
            pass
        await second.wait()
        return ["done"]

    task = asyncio.create_task(within(30.0, waits()))
    for event in (first, second):
        await asyncio.sleep(0)
        assert not task.done()
        event.set()
    assert await task == ["done"]


async def test_what_waits_for_too_long_is_ended() -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    with pytest.raises(TimeoutError):
        await within(0.001, waits())
    assert ended == ["ended"]


async def test_one_that_is_cancelled_cancels_it() -> None:
    ended: list[type[BaseException]] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except BaseException as error:
            ended.append(type(error))
            raise

    task = asyncio.create_task(within(30.0, waits()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [asyncio.CancelledError]
