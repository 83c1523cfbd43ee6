from __future__ import annotations

import asyncio

import pytest

from kernelflume.core.apikeys import KeyLimits
from kernelflume.core.errors import KernelFlumeError, OverloadedError, UnavailableError
from kernelflume.router.admission import Admission
from kernelflume.router.errors import RateLimitedError
from kernelflume.router.metrics import RouterMetrics
from kernelflume.router.tenants import EVERYBODY, Tenant
from kernelflume.runtime.clock import MonotonicClock


class Work:
    error: KernelFlumeError | None = None

    def fail(self, error: KernelFlumeError) -> None:
        self.error = error


def new_admission(max_requests: int, *, max_waiting: int = 0, queue_timeout_s: float = 20.0) -> Admission:
    return Admission(
        max_requests,
        max_waiting=max_waiting,
        queue_timeout_s=queue_timeout_s,
        metrics=RouterMetrics("m", list),
        clock=MonotonicClock(),
    )


async def test_one_too_many_is_refused_until_another_leaves() -> None:
    admission = new_admission(1)
    slot = await admission.enter(EVERYBODY)
    with pytest.raises(OverloadedError):
        await admission.enter(EVERYBODY)
    slot.release()
    slot.release()
    await admission.enter(EVERYBODY)
    with pytest.raises(OverloadedError):
        await admission.enter(EVERYBODY)


async def test_closing_refuses_the_next_and_waits_for_the_last() -> None:
    admission = new_admission(1, max_waiting=1)
    slot = await admission.enter(EVERYBODY)
    waiting = asyncio.create_task(admission.enter(EVERYBODY))
    await asyncio.sleep(0)
    admission.close()
    with pytest.raises(UnavailableError):
        await admission.enter(EVERYBODY)
    with pytest.raises(UnavailableError):
        await waiting
    assert not await admission.wait_empty(timeout_s=0.01)
    slot.release()
    assert await admission.wait_empty(timeout_s=0.01)


async def test_all_work_can_be_failed() -> None:
    admission = new_admission(2)
    first, second = await admission.enter(EVERYBODY), await admission.enter(EVERYBODY)
    first.work = work = Work()
    error = UnavailableError("down")
    assert admission.fail_all(error) == 1
    assert work.error is error
    assert second.work is None


async def test_whoever_waits_is_admitted_in_turn_and_fairly() -> None:
    admission = new_admission(1, max_waiting=9)
    alice, bob = Tenant("a", "alice"), Tenant("b", "bob")
    slot = await admission.enter(alice)
    slot.charge(100)
    order: list[str] = []

    async def ask(tenant: Tenant) -> None:
        own = await admission.enter(tenant)
        order.append(tenant.name)
        own.charge(100)
        own.release()

    tasks = [asyncio.create_task(ask(tenant)) for tenant in (alice, alice, alice, bob, bob, bob)]
    await asyncio.sleep(0)
    slot.release()
    await asyncio.gather(*tasks)
    assert sorted(order[:4]) == ["alice", "alice", "bob", "bob"]
    assert await admission.wait_empty(timeout_s=1)


async def test_a_wait_has_an_end_and_a_cancelled_one_leaves_nothing() -> None:
    admission = new_admission(1, max_waiting=2, queue_timeout_s=0.05)
    tenant = Tenant("a", "alice", limits=KeyLimits(concurrent_requests=2))
    slot = await admission.enter(tenant)
    with pytest.raises(OverloadedError, match="waited"):
        await admission.enter(tenant)
    waiting = asyncio.create_task(admission.enter(tenant))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert admission.usage(tenant).num_requests == 1
    slot.release()
    assert admission.usage(tenant).num_requests == 0
    (await admission.enter(tenant)).release()


async def test_admitted_and_cancelled_in_one_moment_gives_the_place_on() -> None:
    admission = new_admission(1, max_waiting=2)
    tenant = Tenant("a", "alice", limits=KeyLimits(concurrent_requests=3))
    slot = await admission.enter(tenant)
    first = asyncio.create_task(admission.enter(tenant))
    second = asyncio.create_task(admission.enter(tenant))
    await asyncio.sleep(0)
    slot.release()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    (await second).release()
    assert admission.usage(tenant).num_requests == 0
    assert await admission.wait_empty(timeout_s=1)


async def test_limits_of_a_key_are_its_own() -> None:
    admission = new_admission(9)
    limited = Tenant("a", "alice", limits=KeyLimits(concurrent_requests=1, tokens_per_minute=100))
    slot = await admission.enter(limited)
    with pytest.raises(RateLimitedError, match="alice") as refused:
        await admission.enter(limited)
    assert refused.value.code == "concurrency_limit_exceeded"
    (await admission.enter(Tenant("b", "bob"))).release()
    slot.take_prompt(90)
    slot.charge(20)
    with pytest.raises(RateLimitedError) as out:
        slot.take_prompt(1)
    assert out.value.code == "rate_limit_exceeded"
    assert out.value.retry_after_s > 0
