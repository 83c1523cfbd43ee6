from __future__ import annotations

import pytest

from kernelflume.core.errors import KernelFlumeError, OverloadedError, UnavailableError
from kernelflume.router.admission import Admission
from kernelflume.router.metrics import RouterMetrics


class Work:
    error: KernelFlumeError | None = None

    def fail(self, error: KernelFlumeError) -> None:
        self.error = error


def new_admission(max_requests: int) -> Admission:
    return Admission(max_requests, metrics=RouterMetrics("m", list))


async def test_one_too_many_is_refused_until_another_leaves() -> None:
    admission = new_admission(1)
    slot = admission.enter()
    with pytest.raises(OverloadedError):
        admission.enter()
    slot.release()
    slot.release()
    admission.enter()
    with pytest.raises(OverloadedError):
        admission.enter()


async def test_closing_refuses_the_next_and_waits_for_the_last() -> None:
    admission = new_admission(2)
    slot = admission.enter()
    admission.close()
    with pytest.raises(UnavailableError):
        admission.enter()
    assert not await admission.wait_empty(timeout_s=0.01)
    slot.release()
    assert await admission.wait_empty(timeout_s=0.01)


async def test_all_work_can_be_failed() -> None:
    admission = new_admission(2)
    first, second = admission.enter(), admission.enter()
    first.work = work = Work()
    error = UnavailableError("down")
    assert admission.fail_all(error) == 1
    assert work.error is error
    assert second.work is None
