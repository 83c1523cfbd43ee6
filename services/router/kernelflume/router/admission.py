"""How many requests are in progress: refuses one too many, and lets the last ones end at shutdown."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from kernelflume.core.errors import KernelFlumeError, OverloadedError, UnavailableError

if TYPE_CHECKING:
    from kernelflume.router.metrics import RouterMetrics

_RETRY_AFTER_S = 1.0


class Failable(Protocol):
    """Work that can be ended from outside."""

    def fail(self, error: KernelFlumeError) -> None:
        """End the work with this error."""
        ...


class Slot:
    """One admitted request. ``release`` it when its answer is complete; doing it twice is harmless."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.work: Failable | None = None
        """What to end if shutdown cannot wait any longer."""

    def release(self) -> None:
        """Give the place to another request."""
        self._admission.leave(self)


class Admission:
    """Counts requests in progress. Used in one event loop."""

    def __init__(self, max_requests: int, *, metrics: RouterMetrics) -> None:
        self._max_requests = max_requests
        self._slots: set[Slot] = set()
        self._gauge = metrics.requests_in_progress
        self._closed = False
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def closed(self) -> bool:
        """True once no request is admitted any more."""
        return self._closed

    def enter(self) -> Slot:
        """Admit a request.

        Raises:
            OverloadedError: too many are in progress.
            UnavailableError: the router is shutting down.
        """
        if self._closed:
            raise UnavailableError("the server is shutting down")
        if len(self._slots) >= self._max_requests:
            raise OverloadedError(
                f"{self._max_requests} requests are in progress, no more are taken",
                retry_after_s=_RETRY_AFTER_S,
            )
        slot = Slot(self)
        self._slots.add(slot)
        self._gauge.set(len(self._slots))
        self._empty.clear()
        return slot

    def leave(self, slot: Slot) -> None:
        """Forget a slot; called by the slot itself."""
        self._slots.discard(slot)
        self._gauge.set(len(self._slots))
        if not self._slots:
            self._empty.set()

    def close(self) -> None:
        """Admit no more requests."""
        self._closed = True

    async def wait_empty(self, *, timeout_s: float) -> bool:
        """Wait until no request is in progress; False if some still are after ``timeout_s`` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def fail_all(self, error: KernelFlumeError) -> int:
        """End all work in progress with an error; return how many there were."""
        works = [slot.work for slot in self._slots if slot.work is not None]
        for work in works:
            work.fail(error)
        return len(works)
