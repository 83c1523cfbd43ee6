from __future__ import annotations

import asyncio

import pytest

from kernelflume.core.errors import AlreadyExistsError, LifecycleError, NotFoundError
from kernelflume.scaler.book import OperationBook
from kernelflume.scaler.operation import Operation, OperationEvent, Phase


def running(operation_id: str, target: int = 2) -> Operation:
    return Operation.begin(operation_id, target=target, initial=1, now_s=0.0)


def ended(operation_id: str) -> Operation:
    return Operation.begin(operation_id, target=1, initial=1, now_s=0.0)


def test_a_new_request_is_no_repetition() -> None:
    book = OperationBook(max_ended=3)
    book.put(ended("old"))
    assert book.known("new", 2) is None
    assert book.running is None


def test_a_repeated_request_gets_its_operation_running_or_ended() -> None:
    book = OperationBook(max_ended=3)
    book.put(ended("old"))
    book.put(running("now"))
    assert book.known("old", 1) == ended("old")
    assert book.known("now", 2) == running("now")


def test_a_taken_id_or_a_second_operation_is_refused() -> None:
    book = OperationBook(max_ended=3)
    book.put(running("now"))
    with pytest.raises(AlreadyExistsError, match="now exists and has target 2, not 3"):
        book.known("now", 3)
    with pytest.raises(LifecycleError, match=r"now \(target 2\) is still launching"):
        book.check_free()


def test_ended_operations_are_forgotten_oldest_first_and_a_running_one_never() -> None:
    book = OperationBook(max_ended=2)
    book.put(running("now"))
    for number in range(4):
        book.put(ended(f"old-{number}"))
    assert book.get("now").phase is Phase.LAUNCHING
    assert book.get("old-2")
    assert book.newest == book.get("old-3")
    with pytest.raises(NotFoundError, match="'old-1'"):
        book.get("old-1")


async def test_a_watcher_sees_the_operation_until_it_is_done() -> None:
    book = OperationBook(max_ended=2)
    operation = running("now")
    book.put(operation)
    seen: list[Phase] = []

    async def watch() -> None:
        async for each in book.watch("now"):
            seen.append(each.phase)  # noqa: PERF401 - the list is looked at between

    watching = asyncio.create_task(watch())
    for event in (
        OperationEvent.LAUNCHED,
        OperationEvent.PREPARED,
        OperationEvent.PUBLISH,
        OperationEvent.PUBLISHED,
    ):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        operation = operation.after(event, now_s=1.0)
        book.put(operation)
    await watching
    assert seen == [Phase.LAUNCHING, Phase.PREWARMING, Phase.READY, Phase.PUBLISHING, Phase.DONE]


async def test_a_watcher_of_an_ended_operation_is_answered_at_once() -> None:
    book = OperationBook(max_ended=2)
    book.put(ended("old"))
    assert [operation async for operation in book.watch("old")] == [ended("old")]
    with pytest.raises(NotFoundError):
        await anext(book.watch("never"))
