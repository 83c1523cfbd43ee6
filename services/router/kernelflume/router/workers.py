"""Threads for the long work on requests, such as tokenizing, that would hold up the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from kernelflume.core.errors import OverloadedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

_RETRY_AFTER_S = 2.0

T = TypeVar("T")


class Workers:
    """Does work in threads, in the order in which it comes. Used in one event loop."""

    def __init__(self, executor: Executor, *, timeout_s: float) -> None:
        """Make them.

        Args:
            executor: the threads; whoever made it ends it.
            timeout_s: longest time until a piece of work is done, its wait for a thread included.
        """
        self._executor = executor
        self._timeout_s = timeout_s

    async def run(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns. Work that nobody waits for any more is not begun.

        Raises:
            OverloadedError: it was not done in time.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        except TimeoutError:
            raise OverloadedError(
                f"too many long requests are being read: this one was not within {self._timeout_s:g} s",
                retry_after_s=_RETRY_AFTER_S,
            ) from None
