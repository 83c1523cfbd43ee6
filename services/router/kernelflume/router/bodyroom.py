"""How many bytes of large bodies are held at once: what is made of a body takes many times its size."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Self

from kernelflume.core.errors import OverloadedError

if TYPE_CHECKING:
    from types import TracebackType

SMALL_BODY_BYTES = 64 * 1024
"""Bodies up to here need no room, so that none of them waits for a large one."""
_RETRY_AFTER_S = 2.0


class BodyRoom:
    """Room for large bodies, given in the order in which they come. Used in one event loop."""

    def __init__(self, max_bytes: int) -> None:
        """Have all of ``max_bytes`` free."""
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def num_bytes(self) -> int:
        """Bytes that are taken."""
        return self._num_bytes

    def enter(self) -> BodyPlace:
        """Return a place for one body, which takes no room yet."""
        return BodyPlace(self)

    async def take(self, num_bytes: int) -> None:
        """Wait for room; called by a place.

        Raises:
            OverloadedError: there would never be so much.
        """
        if num_bytes > self._max_bytes:
            raise OverloadedError(f"there is no room for a body of {num_bytes} bytes")
        if not self._waiting and self._num_bytes + num_bytes <= self._max_bytes:
            self._num_bytes += num_bytes
            return
        given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((num_bytes, given))
        try:
            await given
        except asyncio.CancelledError:
            if given.cancelled():
                # Unless room that came meanwhile was passed on to whoever stood behind it.
                with contextlib.suppress(ValueError):
                    self._waiting.remove((num_bytes, given))
                self._hand_out()  # what stood behind it may fit
            else:
                # It was given in the very moment in which the caller gave up.
                self.give_back(num_bytes)
            raise

    def give_back(self, num_bytes: int) -> None:
        """Free room; called by a place."""
        self._num_bytes -= num_bytes
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and self._num_bytes + self._waiting[0][0] <= self._max_bytes:
            num_bytes, given = self._waiting.popleft()
            if not given.done():
                self._num_bytes += num_bytes
                given.set_result(None)


class BodyPlace:
    """One body's room, from its reading to the end of the block."""

    def __init__(self, room: BodyRoom) -> None:
        self._room = room
        self._num_bytes = 0
        self._is_waiting = False

    def __enter__(self) -> Self:
        """Begin."""
        return self

    async def need(self, num_bytes: int) -> None:
        """Wait until there is room for a body of so many bytes; only the first call of a body counts."""
        if self._num_bytes or num_bytes <= SMALL_BODY_BYTES:
            return
        self._is_waiting = True
        await self._room.take(num_bytes)
        self._is_waiting = False
        self._num_bytes = num_bytes

    def refusal(self) -> OverloadedError | None:
        """Return what to tell whoever waited in vain, if it was for room."""
        if not self._is_waiting:
            return None
        return OverloadedError("too many large requests are being read", retry_after_s=_RETRY_AFTER_S)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Free the room."""
        if self._num_bytes:
            self._room.give_back(self._num_bytes)
            self._num_bytes = 0
