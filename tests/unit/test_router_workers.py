from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kernelflume.core.errors import OverloadedError
from kernelflume.router.errors import api_error_of
from kernelflume.router.workers import Workers


async def test_work_is_done_in_a_thread() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert await Workers(pool, timeout_s=60.0).run(threading.get_ident) != threading.get_ident()


async def test_who_waits_for_a_thread_in_vain_is_told_so_and_his_work_is_not_begun() -> None:
    done: list[str] = []
    go_on = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        workers = Workers(pool, timeout_s=60.0)
        holding = asyncio.create_task(workers.run(lambda: go_on.wait(60.0)))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError) as refused:
            await Workers(pool, timeout_s=0.01).run(lambda: done.append("in vain"))
        told = api_error_of(refused.value)
        assert (told.status, told.type, told.headers()) == (429, "rate_limit_error", {"Retry-After": "2"})
        go_on.set()
        assert await holding
        await workers.run(lambda: done.append("next"))
    assert done == ["next"]
