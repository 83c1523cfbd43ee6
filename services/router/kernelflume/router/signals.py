"""An event that is waited for once a token."""

from __future__ import annotations

import asyncio


class Signal:
    """Wakes one waiter. Used in one event loop.

    ``asyncio.Event`` looks for the running loop at each wait, which in CPython 3.11 asks the system for the
    process's id: a seventh of what a token costs the router.
    """

    __slots__ = ("_is_set", "_loop", "_waiter")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Wake the waiter, or let the next wait return at once."""
        self._is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        """Let the next wait wait."""
        self._is_set = False

    async def wait(self) -> None:
        """Wait until it is set. There may be one waiter at a time."""
        if self._is_set:
            return
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
