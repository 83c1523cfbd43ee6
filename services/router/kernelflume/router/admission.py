"""Which requests run: limits of their key, a bounded and fair queue, and an orderly end at shutdown."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

from kernelflume.core.errors import KernelFlumeError, OverloadedError, UnavailableError
from kernelflume.router.errors import RateLimitedError
from kernelflume.router.fairness import FairQueue
from kernelflume.router.limits import Usages

if TYPE_CHECKING:
    from kernelflume.router.limits import KeyUsage, Refusal
    from kernelflume.router.metrics import RouterMetrics
    from kernelflume.router.tenants import Tenant
    from kernelflume.runtime.clock import Clock

_RETRY_AFTER_S = 1.0


class Failable(Protocol):
    """Work that can be ended from outside."""

    def fail(self, error: KernelFlumeError) -> None:
        """End the work with this error."""
        ...


class Slot:
    """One admitted request. ``release`` it when its answer is complete; doing it twice is harmless."""

    def __init__(self, admission: Admission, tenant: Tenant, usage: KeyUsage) -> None:
        self._admission = admission
        self.tenant = tenant
        self.usage = usage
        self.work: Failable | None = None
        """What to end if shutdown cannot wait any longer."""

    def take_prompt(self, num_tokens: int) -> None:
        """Charge the request's prompt.

        Raises:
            RateLimitedError: its key may not use so many tokens now.
        """
        self._admission.take_prompt(self, num_tokens)

    def charge(self, num_tokens: int) -> None:
        """Charge tokens that were generated."""
        self._admission.charge(self, num_tokens)

    def release(self) -> None:
        """Give the place to another request."""
        self._admission.leave(self)


class _Waiter:
    """One request in the queue."""

    def __init__(self, tenant: Tenant, usage: KeyUsage) -> None:
        self.tenant = tenant
        self.usage = usage
        self.admitted: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()


class Admission:
    """Decides which requests run. Used in one event loop."""

    def __init__(
        self,
        max_requests: int,
        *,
        max_waiting: int = 0,
        queue_timeout_s: float = 0.0,
        metrics: RouterMetrics,
        clock: Clock,
    ) -> None:
        """Admit nobody yet.

        Args:
            max_requests: requests that run at once.
            max_waiting: requests that wait for others to end.
            queue_timeout_s: longest wait.
            metrics: counts both.
            clock: for limits a minute, and waits.
        """
        self._max_requests = max_requests
        self._queue_timeout_s = queue_timeout_s
        self._slots: set[Slot] = set()
        self._queue: FairQueue[_Waiter] = FairQueue(max_waiting)
        self._usages = Usages()
        self._metrics = metrics
        self._clock = clock
        self._closed = False
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def closed(self) -> bool:
        """True once no request is admitted any more."""
        return self._closed

    def usage(self, tenant: Tenant) -> KeyUsage:
        """Return what a tenant has used, against its limits."""
        return self._usages.of(tenant.tenant_id, tenant.limits, self._clock.now())

    async def enter(self, tenant: Tenant) -> Slot:
        """Admit a request of a tenant, at once or when it is its turn.

        Raises:
            RateLimitedError: the tenant's limits are used up.
            OverloadedError: too many requests wait, or it waited for too long.
            UnavailableError: the router is shutting down.
        """
        if self._closed:
            raise UnavailableError("the server is shutting down")
        usage = self.usage(tenant)
        self._raise(usage.take_request(self._clock.now()), tenant)
        try:
            # Whoever waits is before whoever comes, also in the moment in which a place is free.
            if len(self._slots) < self._max_requests and not len(self._queue):
                self._queue.started(tenant.tenant_id, tenant.weight)
                return self._new_slot(tenant, usage)
            return await self._wait(_Waiter(tenant, usage))
        except BaseException:
            usage.num_requests -= 1
            raise

    def take_prompt(self, slot: Slot, num_tokens: int) -> None:
        """Charge a prompt; see ``Slot.take_prompt``."""
        self._raise(slot.usage.take_prompt(num_tokens, self._clock.now()), slot.tenant)
        self._queue.charge(slot.tenant.tenant_id, num_tokens)

    def charge(self, slot: Slot, num_tokens: int) -> None:
        """Charge tokens that were generated; see ``Slot.charge``."""
        slot.usage.charge_tokens(num_tokens, self._clock.now())
        self._queue.charge(slot.tenant.tenant_id, num_tokens)

    def leave(self, slot: Slot) -> None:
        """Forget a slot; called by the slot itself."""
        if slot not in self._slots:
            return
        self._slots.discard(slot)
        slot.usage.num_requests -= 1
        self._queue.ended(slot.tenant.tenant_id)
        self._admit_waiting()
        self._count()
        if not self._slots:
            self._empty.set()

    def close(self) -> None:
        """Admit no more requests; those that wait are refused."""
        self._closed = True
        for waiter in self._queue.clear():
            _refuse(waiter, UnavailableError("the server is shutting down"))
        self._count()

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

    async def _wait(self, waiter: _Waiter) -> Slot:
        tenant = waiter.tenant
        refused = self._queue.push(tenant.tenant_id, tenant.weight, waiter)
        if refused is not None:
            self._metrics.refusals.labels("queue_full").inc()
            _refuse(
                refused,
                OverloadedError(
                    f"{self._max_requests} requests are in progress and {len(self._queue)} wait, no more are "
                    "taken",
                    retry_after_s=_RETRY_AFTER_S,
                ),
            )
        self._count()
        began_at = self._clock.now()
        try:
            async with asyncio.timeout(self._queue_timeout_s or None):
                return await waiter.admitted
        except TimeoutError:
            self._give_up(waiter)
            self._metrics.refusals.labels("queue_timeout").inc()
            raise OverloadedError(
                f"the request waited for {self._queue_timeout_s:g} s behind others",
                retry_after_s=_RETRY_AFTER_S,
            ) from None
        except asyncio.CancelledError:
            self._give_up(waiter)
            raise
        finally:
            self._metrics.queue_time.observe(self._clock.now() - began_at)

    def _give_up(self, waiter: _Waiter) -> None:
        """Let a request wait no more. It may have been admitted in the very moment."""
        if self._queue.remove(waiter.tenant.tenant_id, waiter):
            self._count()
            return
        with contextlib.suppress(asyncio.InvalidStateError, asyncio.CancelledError, KernelFlumeError):
            slot = waiter.admitted.result()
            slot.usage.num_requests += 1  # of which both the slot and the waiting call take one
            self.leave(slot)

    def _admit_waiting(self) -> None:
        while len(self._slots) < self._max_requests and not self._closed:
            waiter = self._queue.pop()
            if waiter is None:
                return
            waiter.admitted.set_result(self._new_slot(waiter.tenant, waiter.usage))

    def _new_slot(self, tenant: Tenant, usage: KeyUsage) -> Slot:
        slot = Slot(self, tenant, usage)
        self._slots.add(slot)
        self._empty.clear()
        self._count()
        return slot

    def _count(self) -> None:
        self._metrics.requests_in_progress.set(len(self._slots))
        self._metrics.requests_queued.set(len(self._queue))

    def _raise(self, refusal: Refusal | None, tenant: Tenant) -> None:
        if refusal is not None:
            self._metrics.refusals.labels(refusal.code).inc()
            raise RateLimitedError(
                f"{tenant.name}: {refusal.message}", code=refusal.code, retry_after_s=refusal.retry_after_s
            )


def _refuse(waiter: _Waiter, error: KernelFlumeError) -> None:
    if not waiter.admitted.done():
        waiter.admitted.set_exception(error)
