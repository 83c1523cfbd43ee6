"""Two hundred times up and down: nothing is left of it."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from redis.asyncio import Redis
from tests.scaler_rig import Rig, eventually, scaler_rig

from kernelflume.core.leases import NodeKind
from kernelflume.core.routing import NodeState
from kernelflume.scaler.operation import Result
from kernelflume.scaler.operation_records import MAX_RECORDS

if TYPE_CHECKING:
    from tests.valkey import ValkeyProcess

pytestmark = [pytest.mark.redis, pytest.mark.slow]

NUM_CYCLES = 200
_MANY_BYTES = 24 * 1024**2
_POOLED = 4


async def cycle(rig: Rig, number: int) -> None:
    for target in (2, 1):
        operation = await rig.scale(f"{number}-{target}", target)
        assert operation.result is Result.SUCCEEDED, operation


async def census(rig: Rig, valkey: ValkeyProcess) -> dict[str, Any]:
    """Count what could leak."""
    gc.collect()
    process = psutil.Process()
    async with Redis.from_url(valkey.url, decode_responses=True) as redis:
        # The rig does not renew its leadership, so that key runs out by itself.
        keys = sorted([key async for key in redis.scan_iter() if not key.endswith(":leader")])
        # Operations can be asked for, for a time; no more than so many.
        records = [key for key in keys if ":operation:" in key]
        assert len(records) <= MAX_RECORDS
        assert all([await redis.pttl(key) > 0 for key in records])
        keys = [key for key in keys if key not in records]
    return {
        "descriptors": process.num_fds(),
        "children": len(process.children(recursive=True)),
        "tasks": len(asyncio.all_tasks()),
        "keys": keys,
        "leases": [record.node_id for record in await rig.outside.living(NodeKind.WEIGHT)],
        "nodes": len(rig.provider.nodes),
        "active": list((await rig.states()).values()),
    }


async def settled(rig: Rig, valkey: ValkeyProcess) -> dict[str, Any]:
    """Count once what ends by itself has ended."""
    seen = [await census(rig, valkey)]

    async def changes_no_more() -> bool:
        await asyncio.sleep(0.5)
        seen.append(await census(rig, valkey))
        return seen[-1] == seen[-2]

    await eventually(changes_no_more)
    return seen[-1]


@pytest.mark.timeout(900)
async def test_cycles_leave_nothing(valkey: ValkeyProcess) -> None:
    async with scaler_rig(valkey.url, initial_target=1) as rig:
        await rig.settles_at(a_1=NodeState.ACTIVE)
        await rig.add_weight()
        for number in range(10):
            await cycle(rig, number)
        before = await settled(rig, valkey)
        memory = psutil.Process().memory_info().rss
        for number in range(10, 10 + NUM_CYCLES):
            await cycle(rig, number)
        after: dict[str, Any] = {}

        async def is_as_before() -> bool:
            nonlocal after
            after = await census(rig, valkey)
            # The pool of connections grows to the most used at once; a leak would be hundreds.
            allowed = {"descriptors": before["descriptors"] + _POOLED}
            return after["descriptors"] <= allowed["descriptors"] and before | allowed == after | allowed

        with suppress(TimeoutError):  # told below by what differs
            await eventually(is_as_before)
        assert after.pop("descriptors") <= before.pop("descriptors") + _POOLED
        assert after == before
        assert len(await rig.outside.living(NodeKind.ATTENTION)) == 1
        assert psutil.Process().memory_info().rss - memory < _MANY_BYTES
