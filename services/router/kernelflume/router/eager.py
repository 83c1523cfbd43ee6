"""A deadline for what is mostly done at once: it costs something only where something is waited for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

T = TypeVar("T")


async def within(timeout_s: float, coroutine: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns, run in this task.

    Args:
        timeout_s: longest time that it may take, from its first wait on.
        coroutine: one that was not begun.

    Raises:
        TimeoutError: it took longer.
    """
    try:
        awaited = coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    async with asyncio.timeout(timeout_s):
        return await _Rest(coroutine, awaited)


class _Rest(Generic[T]):
    """What is left of a coroutine that was begun and waits for something."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], awaited: Any) -> None:
        self._coroutine = coroutine
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, T]:
        awaited = self._awaited
        while True:
            failure: BaseException | None = None
            try:
                sent = yield awaited
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is the coroutine's
                failure = error
            try:
                awaited = self._coroutine.send(sent) if failure is None else self._coroutine.throw(failure)
            except StopIteration as done:
                result: T = done.value
                return result
