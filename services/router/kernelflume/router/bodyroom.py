"""How much is held of large bodies at once, and of one key's: what is made of a body takes far more."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from kernelflume.core.errors import OverloadedError

if TYPE_CHECKING:
    from types import TracebackType

    from kernelflume.router.metrics import RouterMetrics

SMALL_BODY_BYTES = 64 * 1024
"""Bodies up to here need no room and no thread, so that none of them waits for a large one."""
_RETRY_AFTER_S = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """One body that is not read on until there is room for it."""

    number: int
    """In the order of arrival."""
    num_bytes: int
    given: asyncio.Future[None]


@dataclass(slots=True)
class _Owner:
    """A key with large bodies, or everybody where there are no keys."""

    num_bytes: int = 0
    """Of its bodies that have room."""
    waiting: deque[_Waiter] = field(default_factory=deque)

    @property
    def is_active(self) -> bool:
        return bool(self.num_bytes or self.waiting)


class BodyRoom:
    """Room for large bodies. Used in one event loop.

    Next is the owner that holds least, and of equals who came first. Nobody holds more than a share, so that
    there is room for others, however many large bodies one sends and however slowly.
    """

    def __init__(
        self, max_bytes: int, *, share_bytes: int, max_waiting: int, timeout_s: float, metrics: RouterMetrics
    ) -> None:
        """Have all of it free.

        Args:
            max_bytes: all bodies together.
            share_bytes: those of one owner together; the largest body fits.
            max_waiting: most bodies of one owner that wait.
            timeout_s: longest wait.
            metrics: counts refusals.
        """
        self._max_bytes = max_bytes
        self._share_bytes = share_bytes
        self._max_waiting = max_waiting
        self._timeout_s = timeout_s
        self._metrics = metrics
        self._num_bytes = 0
        self._num_arrived = 0
        self._owners: dict[str, _Owner] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes that are taken."""
        return self._num_bytes

    def enter(self, owner: str) -> BodyPlace:
        """Return a place for one body of an owner, which takes no room yet."""
        return BodyPlace(self, owner)

    async def take(self, owner: str, num_bytes: int) -> None:
        """Wait for room; called by a place.

        Raises:
            OverloadedError: too many wait, or it waited for too long.
        """
        known = self._owners.setdefault(owner, _Owner())
        if len(known.waiting) >= self._max_waiting:
            raise self._refusal(
                "bodies_full",
                f"{self._max_waiting} large requests of this key wait to be read, no more are taken",
            )
        waiter = _Waiter(self._num_arrived, num_bytes, asyncio.get_running_loop().create_future())
        self._num_arrived += 1
        known.waiting.append(waiter)
        self._hand_out()
        try:
            async with asyncio.timeout(self._timeout_s):
                await waiter.given
        except TimeoutError:
            self._give_up(owner, waiter)
            raise self._refusal(
                "bodies_timeout",
                f"the request waited for {self._timeout_s:g} s to be read, behind other large ones",
            ) from None
        except asyncio.CancelledError:
            self._give_up(owner, waiter)
            raise

    def give_back(self, owner: str, num_bytes: int) -> None:
        """Free room; called by a place."""
        self._num_bytes -= num_bytes
        self._owners[owner].num_bytes -= num_bytes
        self._hand_out()

    def _give_up(self, owner: str, waiter: _Waiter) -> None:
        if not waiter.given.cancelled():
            # It was given in the very moment in which the caller gave up.
            self.give_back(owner, waiter.num_bytes)
            return
        # Unless it was dropped already, when room was handed out meanwhile.
        with contextlib.suppress(KeyError, ValueError):
            self._owners[owner].waiting.remove(waiter)
        self._hand_out()  # what stood behind it may fit

    def _hand_out(self) -> None:
        while (next_owner := self._next_owner()) is not None:
            waiter = next_owner.waiting[0]
            # Nobody who came later passes it, else a large one might wait for ever.
            if self._num_bytes + waiter.num_bytes > self._max_bytes:
                break
            next_owner.waiting.popleft()
            next_owner.num_bytes += waiter.num_bytes
            self._num_bytes += waiter.num_bytes
            waiter.given.set_result(None)
        self._owners = {name: known for name, known in self._owners.items() if known.is_active}

    def _next_owner(self) -> _Owner | None:
        """Return who is next of those whose share is not used up."""
        ready: list[_Owner] = []
        for known in self._owners.values():
            while known.waiting and known.waiting[0].given.done():
                known.waiting.popleft()  # it was cancelled, and does not know it yet
            if known.waiting and known.num_bytes + known.waiting[0].num_bytes <= self._share_bytes:
                ready.append(known)
        return min(ready, key=lambda known: (known.num_bytes, known.waiting[0].number), default=None)

    def _refusal(self, reason: str, message: str) -> OverloadedError:
        self._metrics.refusals.labels(reason).inc()
        return OverloadedError(message, retry_after_s=_RETRY_AFTER_S)


class BodyPlace:
    """One body's room, from its reading to the end of the block."""

    def __init__(self, room: BodyRoom, owner: str) -> None:
        self._room = room
        self._owner = owner
        self._num_bytes = 0

    def __enter__(self) -> Self:
        """Begin."""
        return self

    async def need(self, num_bytes: int) -> None:
        """Wait until there is room for a body of so many bytes; only the first call of a body counts.

        Raises:
            OverloadedError: there is none, or there was none in time.
        """
        if self._num_bytes or num_bytes <= SMALL_BODY_BYTES:
            return
        await self._room.take(self._owner, num_bytes)
        self._num_bytes = num_bytes

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Free the room."""
        if self._num_bytes:
            self._room.give_back(self._owner, self._num_bytes)
            self._num_bytes = 0
