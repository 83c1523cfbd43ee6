"""What ends gives its memory back: cancelled requests, and attention nodes that never see the weights."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest
from tests.golden.prompts import PROMPTS
from tests.stack import Stack, Stream, serve

from kernelflume.checkpoint.source import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(900)]

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("release")
    with serve(folder, "--attention-nodes", "2", "--attention-node-memory", "256MiB") as served:
        yield served


async def test_requests_cancelled_at_random_moments_leave_nothing(stack: Stack) -> None:
    chance = random.Random(7)  # noqa: S311 - repeatable moments
    prompts = list(PROMPTS.values())
    expected = await stack.generate(PROMPTS["story"], 24)
    gate = asyncio.Semaphore(24)

    async def one() -> None:
        async with gate:
            task = asyncio.create_task(stack.stream(chance.choice(prompts), 200, Stream()))
            await asyncio.sleep(chance.uniform(0.0, 1.5))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    await asyncio.gather(*(one() for _ in range(200)))
    await stack.wait_baseline()
    assert (await asyncio.to_thread(stack.status))["sequences"] == []
    assert await stack.generate(PROMPTS["story"], 24) == expected


async def test_attention_nodes_hold_kv_and_buffers_and_no_weights(stack: Stack) -> None:
    await stack.generate(PROMPTS["story"], 8)
    folder = str(resolve("smollm2").path)
    processes = stack.attention_node_processes()
    assert len(processes) == 4  # a shell and a worker each
    for process in processes:
        maps = {region.path for region in process.memory_maps()} | {f.path for f in process.open_files()}
        assert not [
            path for path in maps if path.startswith(folder) or path.endswith((".safetensors", ".gguf"))
        ]
        assert folder not in " ".join(process.cmdline())
    for node in await stack.statistics():
        assert node.kv_bytes <= 256 * MIB
        # What is neither pool nor lanes is the interpreter with its libraries.
        assert node.resident_bytes - node.kv_bytes - node.buffer_bytes < 400 * MIB
