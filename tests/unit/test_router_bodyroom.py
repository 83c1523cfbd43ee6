from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from starlette.requests import Request

from kernelflume.core.errors import OverloadedError
from kernelflume.router.body import read_json_body
from kernelflume.router.bodyroom import SMALL_BODY_BYTES, BodyRoom
from kernelflume.router.errors import BodyTimeoutError, BodyTooLargeError, api_error_of
from kernelflume.router.metrics import RouterMetrics

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
        self.num_asked = 0
        self._halves = [num_bytes - num_bytes // 2, num_bytes // 2]
        self.request = Request({"type": "http", "headers": headers}, self._receive)

    async def _receive(self) -> Message:
        self.num_asked += 1
        if len(self._halves) == 1:
            await self.goes_on.wait()
        half = self._halves.pop(0)
        return {"type": "http.request", "body": b" " * half, "more_body": bool(self._halves)}


def new_room(
    max_bytes: int, *, share_bytes: int | None = None, max_waiting: int = 64, timeout_s: float = 30.0
) -> BodyRoom:
    return BodyRoom(
        max_bytes,
        share_bytes=share_bytes or max_bytes,
        max_waiting=max_waiting,
        timeout_s=timeout_s,
        metrics=RouterMetrics("m", list),
    )


async def read(
    room: BodyRoom,
    upload: Upload,
    *,
    work: asyncio.Event | None = None,
    timeout_s: float = 30.0,
    owner: str = "",
) -> int:
    """Read a body and hold it until the work with it is done."""
    with room.enter(owner) as place:
        body = await read_json_body(upload.request, place, max_bytes=LARGE, timeout_s=timeout_s)
        if work is not None:
            await work.wait()
    return len(body)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("declared", [True, False])
async def test_large_bodies_never_take_more_than_the_room(declared: bool) -> None:
    room = new_room(3 * LARGE)
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
    room = new_room(LARGE)
    slow = Upload(LARGE, goes_on=False)
    large = [asyncio.create_task(read(room, slow)), asyncio.create_task(read(room, Upload(LARGE)))]
    await settle()
    assert room.num_bytes == LARGE
    assert await read(room, Upload(SMALL_BODY_BYTES, declared=False)) == SMALL_BODY_BYTES
    slow.goes_on.set()
    assert await asyncio.gather(*large) == [LARGE, LARGE]


async def test_who_waits_for_room_in_vain_is_told_so() -> None:
    room = new_room(LARGE, timeout_s=0.01)
    holding = asyncio.create_task(read(room, Upload(LARGE, goes_on=False)))
    await settle()
    with pytest.raises(OverloadedError) as refused:
        await read(room, Upload(LARGE))
    told = api_error_of(refused.value)
    assert (told.status, told.type, told.headers()) == (429, "rate_limit_error", {"Retry-After": "2"})
    with pytest.raises(BodyTimeoutError):
        await read(room, Upload(SMALL_BODY_BYTES, goes_on=False), timeout_s=0.01)
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    assert room.num_bytes == 0
    assert await read(room, Upload(LARGE)) == LARGE


async def test_one_that_gives_up_frees_what_it_waited_for() -> None:
    room = new_room(LARGE + 1)
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
    room = new_room(LARGE)
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
    room = new_room(LARGE)
    with pytest.raises(BodyTooLargeError):
        await read(room, Upload(LARGE + 1))
    assert room.num_bytes == 0


async def test_the_rest_of_a_refused_body_is_taken_within_the_one_time() -> None:
    room = new_room(LARGE, timeout_s=0.01)
    holding = asyncio.create_task(read(room, Upload(LARGE, goes_on=False)))
    await settle()
    # One whose end does not come is told of the room all the same, when the time for bodies is over.
    with pytest.raises(OverloadedError):
        await read(room, Upload(LARGE, goes_on=False), timeout_s=0.05)
    # Of one that is all there nothing more is asked of the client: it would be waited for in vain.
    there = Upload(LARGE)
    with pytest.raises(OverloadedError):
        await read(room, there)
    assert there.num_asked == 2
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)
    assert room.num_bytes == 0


async def test_a_key_leaves_room_for_others() -> None:
    room = new_room(4 * LARGE, share_bytes=2 * LARGE)
    slow = [asyncio.create_task(read(room, Upload(LARGE, goes_on=False), owner="slow")) for _ in range(8)]
    await settle()
    assert room.num_bytes == 2 * LARGE
    for _ in range(3):
        assert await read(room, Upload(LARGE), owner="other") == LARGE
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    assert room.num_bytes == 0


async def test_the_key_that_holds_least_is_next() -> None:
    room = new_room(2 * LARGE)
    order: list[str] = []

    async def one(owner: str, work: asyncio.Event) -> None:
        await read(room, Upload(LARGE), work=work, owner=owner)
        order.append(owner)

    first = [asyncio.Event() for _ in range(2)]
    done = asyncio.Event()
    done.set()
    tasks = [asyncio.create_task(one("many", work)) for work in first]
    await settle()
    tasks += [asyncio.create_task(one(owner, done)) for owner in ("many", "many", "few")]
    await settle()
    first[0].set()
    await settle()
    first[1].set()
    await asyncio.gather(*tasks)
    assert order == ["many", "few", "many", "many", "many"]
    assert room.num_bytes == 0


async def test_bodies_of_a_key_that_wait_are_bounded() -> None:
    room = new_room(LARGE, max_waiting=2)
    work = asyncio.Event()
    reads = [asyncio.create_task(read(room, Upload(LARGE), work=work, owner="many")) for _ in range(3)]
    await settle()
    with pytest.raises(OverloadedError, match="2 large requests of this key wait"):
        await read(room, Upload(LARGE), owner="many")
    other = asyncio.create_task(read(room, Upload(LARGE), work=work, owner="other"))
    await settle()
    work.set()
    assert await asyncio.gather(*reads, other) == [LARGE] * 4
