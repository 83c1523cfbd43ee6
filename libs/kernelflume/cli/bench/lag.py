"""Whether the client itself was late: how long its event loop took to come back to what was due."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kernelflume.cli.bench.outcome import Sample

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable

INTERVAL_S = 0.01
_CAPACITY = 200_000


class LagMeter:
    """Sleeps again and again and notes by how much each sleep was too long."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._sample = Sample(_CAPACITY, 0)

    @property
    def lags_s(self) -> array[float]:
        """What was measured, in seconds."""
        return self._sample.values

    async def measure(self) -> None:
        """Go on until cancelled."""
        while True:
            begun_s = self._now()
            await asyncio.sleep(INTERVAL_S)
            self._sample.add([max(0.0, self._now() - begun_s - INTERVAL_S)])
