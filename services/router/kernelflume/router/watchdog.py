"""A deadline that is moved with every token: moving it costs an assignment, not a timer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Watchdog:
    """Calls back once when it was armed for too long without a break. Used in one event loop.

    ``asyncio.timeout`` makes and cancels a timer for each wait. Here one timer looks now and then, so that
    the call comes between one and two limits after the arming that was never followed by ``disarm``.
    """

    def __init__(self, limit_s: float, on_expired: Callable[[], None]) -> None:
        """Make a watchdog that is not armed.

        Args:
            limit_s: seconds it may stay armed.
            on_expired: called in the event loop.
        """
        self._limit_s = limit_s
        self._on_expired = on_expired
        self._loop = asyncio.get_running_loop()
        self._armed = False
        self._num_armed = 0
        self._num_seen = 0
        self._timer: asyncio.TimerHandle | None = None

    def arm(self) -> None:
        """Begin a wait."""
        self._armed = True
        self._num_armed += 1
        if self._timer is None:
            self._look_later()

    def disarm(self) -> None:
        """End a wait."""
        self._armed = False

    def close(self) -> None:
        """Never call back any more."""
        self._armed = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> None:
        self._num_seen = self._num_armed
        self._timer = self._loop.call_later(self._limit_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._armed:
            return
        # Armed all the time since the last look, by one and the same wait?
        if self._num_armed == self._num_seen:
            self._armed = False
            self._on_expired()
        else:
            self._look_later()
