from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from starlette.requests import Request

from kernelflume.core.errors import OverloadedError
from kernelflume.router.body import read_json_body
from kernelflume.router.bodyroom import SMALL_BODY_BYTES, BodyRoom
from kernelflume.router.errors import BodyTimeoutError, BodyTooLargeError

if TYPE_CHECKING:
    from starlette.types import Message

LARGE = 4 * SMALL_BODY_BYTES


class Upload:
    """A body that comes in halves; the second when it is let go on."""

    def __init__(self, num_bytes: int, *, declared: bool = True, goes_on: bool = True) -> None:
        self.goes_on = asyncio.Event()
        if goes_on:
            self.goes_on.set()
        headers = [(b"content-type", b"application/json")]
        if declared:
            headers.append((b"content-length", str(num_bytes).encode()))
        self._halves = [num_bytes - num_bytes // 2, num_bytes // 2]
        self.request = Request({"type": "http", "headers": headers}, self._receive)

    async def _receive(self) -> Message:
        if len(self._halves) == 1:
            await self.goes_on.wait()
        half = self._halves.pop(0)
        return {"type": "http.request", "body": b" " * half, "more_body": bool(self._halves)}


async def read(
    room: BodyRoom, upload: Upload, *, work: asyncio.Event | None = None, timeout_s: float = 30.0
) -> int:
    """Read a body and hold it until the work with it is done."""
    with room.enter() as place:
        body = await read_json_body(upload.request, place, max_bytes=LARGE, timeout_s=timeout_s)
        if work is not None:
            await work.wait()
    return len(body)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("declared", [True, False])
async def test_large_bodies_never_take_more_than_the_room(declared: bool) -> None:
    room = BodyRoom(3 * LARGE)
    works = [asyncio.Event() for _ in range(64)]
    reads = [asyncio.create_task(read(room, Upload(LARGE, declared=declared), work=work)) for work in works]
    for num_done, work in enumerate(works):
        await settle()
        assert room.num_bytes == min(3, 64 - num_done) * LARGE
        assert sum(task.done() for task in reads) == num_done
        work.set()
    assert await asyncio.gather(*reads) == [LARGE] * 64
    assert room.num_bytes == 0


async def test_a_small_body_waits_for_no_large_one() -> None:
    room = BodyRoom(LARGE)
    slow = Upload(LARGE, goes_on=False)
    large = [asyncio.create_task(read(room, slow)), asyncio.create_task(read(room, Upload(LARGE)))]
    await settle()
    assert room.num_bytes == LARGE
    assert await read(room, Upload(SMALL_BODY_BYTES, declared=False)) == SMALL_BODY_BYTES
    slow.goes_on.set()
    assert await asyncio.gather(*large) == [LARGE, LARGE]


async def test_who_waits_for_room_in_vain_is_told_so() -> None:
    room = BodyRoom(LARGE)
    holding = asyncio.create_task(read(room, Upload(LARGE, goes_on=False)))
    await settle()
    with pytest.raises(OverloadedError):
        await read(room, Upload(LARGE), timeout_s=0.01)
    with pytest.raises(BodyTimeoutError):
        await read(room, Upload(SMALL_BODY_BYTES, goes_on=False), timeout_s=0.01)
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    assert room.num_bytes == 0
    assert await read(room, Upload(LARGE)) == LARGE


async def test_one_that_gives_up_frees_what_it_waited_for() -> None:
    room = BodyRoom(LARGE + 1)
    work = asyncio.Event()
    holding = asyncio.create_task(read(room, Upload(LARGE, declared=True), work=work))
    await settle()
    waiting = [asyncio.create_task(read(room, Upload(LARGE))) for _ in range(3)]
    await settle()
    work.set()
    # The first of them is given room in this very turn, and is cancelled before it knows.
    await holding
    waiting[0].cancel()
    waiting[1].cancel()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert outcomes[2] == LARGE
    assert room.num_bytes == 0


async def test_many_that_give_up_at_once_leave_the_room_as_it_was() -> None:
    room = BodyRoom(LARGE)
    holding = asyncio.create_task(read(room, Upload(LARGE, goes_on=False)))
    await settle()
    crowd = [asyncio.create_task(read(room, Upload(LARGE))) for _ in range(8)]
    await settle()
    # Whoever holds the room leaves in the same turn, before those that wait know that they are cancelled.
    for task in (*crowd, holding):
        task.cancel()
    outcomes = await asyncio.gather(*crowd, holding, return_exceptions=True)
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    assert room.num_bytes == 0
    assert await read(room, Upload(LARGE)) == LARGE


async def test_one_that_says_that_it_is_too_large_takes_no_room() -> None:
    room = BodyRoom(LARGE)
    with pytest.raises(BodyTooLargeError):
        await read(room, Upload(LARGE + 1))
    assert room.num_bytes == 0
