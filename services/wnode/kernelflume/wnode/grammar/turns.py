"""Whose turn it is to compile: a tenant has one place at a time, and those who wait are served in a ring."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from kernelflume.core.errors import OverloadedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_RETRY_AFTER_S = 2.0


class Turns:
    """Hands out a few places. Used in one event loop.

    A tenant whose work takes long holds one place and queues behind itself: others wait for the rest.
    """

    def __init__(self, num_places: int, *, max_waiting: int, max_waiting_of_one: int) -> None:
        """Have all places free.

        Args:
            num_places: works at once; numbered from 0.
            max_waiting: waiting works in all.
            max_waiting_of_one: waiting works of one tenant.
        """
        self._free = list(range(num_places))
        self._max_waiting = max_waiting
        self._max_waiting_of_one = max_waiting_of_one
        self._num_waiting = 0
        self._working: set[str] = set()
        # In the order in which it is their turn.
        self._waiting: OrderedDict[str, deque[asyncio.Future[int]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[int]:
        """Wait for a place, the lowest that is free, and hold it for the block.

        Raises:
            OverloadedError: too many wait.
        """
        place = await self._take(tenant)
        try:
            yield place
        finally:
            self._give_back(tenant, place)

    async def _take(self, tenant: str) -> int:
        queue = self._waiting.setdefault(tenant, deque())
        if len(queue) >= self._max_waiting_of_one or self._num_waiting >= self._max_waiting:
            num_waiting = len(queue)
            self._forget_if_idle(tenant)
            raise OverloadedError(
                f"{num_waiting} grammars of this client wait to be compiled, and {self._num_waiting} in all",
                retry_after_s=_RETRY_AFTER_S,
            )
        given: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        queue.append(given)
        self._num_waiting += 1
        self._hand_out()
        try:
            return await given
        except asyncio.CancelledError:
            if given.cancelled():
                queue.remove(given)
                self._num_waiting -= 1
                self._forget_if_idle(tenant)
            else:
                # It was given in the very moment in which the caller gave up.
                self._give_back(tenant, given.result())
            raise

    def _give_back(self, tenant: str, place: int) -> None:
        self._working.discard(tenant)
        self._free.append(place)
        self._free.sort()
        self._hand_out()

    def _hand_out(self) -> None:
        for tenant in [name for name in self._waiting if name not in self._working]:
            if not self._free:
                return
            queue = self._waiting[tenant]
            given = next((one for one in queue if not one.done()), None)
            if given is None:
                continue
            queue.remove(given)
            self._num_waiting -= 1
            self._working.add(tenant)
            self._waiting.move_to_end(tenant)
            self._forget_if_idle(tenant)
            given.set_result(self._free.pop(0))

    def _forget_if_idle(self, tenant: str) -> None:
        if not self._waiting.get(tenant, True):
            del self._waiting[tenant]
