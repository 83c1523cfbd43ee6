"""One reading of the topology for all who watch it: the store must not feel how many they are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kernelflume.rpc.v1 import scaler_pb2
    from kernelflume.runtime.clock import Clock


class TopologyFeed:
    """Hands out a topology that is at most ``max_age_s`` old. One event loop."""

    def __init__(
        self, read: Callable[[], Awaitable[scaler_pb2.Topology]], clock: Clock, *, max_age_s: float
    ) -> None:
        """Read by calling ``read``, only while somebody asks."""
        self._read = read
        self._clock = clock
        self._max_age_s = max_age_s
        self._reading: asyncio.Future[scaler_pb2.Topology] | None = None
        self._began_at_s = 0.0

    async def topology(self) -> scaler_pb2.Topology:
        """Return the newest topology; nobody may change it, others have the same.

        Raises:
            UnavailableError: the store cannot be reached.
        """
        now_s = self._clock.now()
        reading = self._reading
        if reading is None or (reading.done() and now_s - self._began_at_s >= self._max_age_s):
            reading = self._reading = asyncio.ensure_future(self._read())
            # One who goes away ends the reading for nobody, and a fault that nobody hears is none.
            reading.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._began_at_s = now_s
        return await asyncio.shield(reading)
