"""The policy under real load: KV outgrows one node several times over, and nobody notices."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.golden.prompts import PROMPTS
from tests.stack import WAIT_S, Stack, Stream, serve

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(1200)]

NUM_STREAMS = 16
NUM_TOKENS = 250
POLICY = """
maximum_nodes: 6
gamma: 0.8
scale_down_cooldown_s: 15
silence_s: 15
"""


async def decode(stack: Stack) -> list[Stream]:
    """Decode all streams at once, from short prompts."""
    prompts = [prompt for prompt in PROMPTS.values() if len(prompt) < 400]
    streams = [Stream() for _ in range(NUM_STREAMS)]
    async with asyncio.TaskGroup() as tasks:
        for number, stream in enumerate(streams):
            tasks.create_task(stack.stream(prompts[number % len(prompts)], NUM_TOKENS, stream))
    return streams


async def test_the_pool_grows_ahead_of_the_load_and_silence_shrinks_it(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY, encoding="utf-8")
    pages = {"KERNELFLUME_ANODE_PAGE_TOKENS": "16"}
    with serve(tmp_path / "large", "--attention-nodes", "1", **pages) as large:
        expected = [stream.token_ids for stream in await decode(large)]

    policy = {"KERNELFLUME_SCALER_POLICY_FILE": str(tmp_path / "policy.yaml")}
    flags = ("--attention-nodes", "1", "--attention-node-memory", "64MiB")  # 1,456 tokens
    with serve(tmp_path / "small", *flags, **pages, **policy) as small:
        most_nodes = 0

        async def watch() -> None:
            nonlocal most_nodes
            while True:
                most_nodes = max(most_nodes, len(await asyncio.to_thread(small.nodes)))
                await asyncio.sleep(1.0)

        watching = asyncio.create_task(watch())
        streams = await decode(small)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        most_nodes = max(most_nodes, len(await asyncio.to_thread(small.nodes)))
        assert [stream.token_ids for stream in streams] == expected
        assert {stream.finish_reason for stream in streams} == {"length"}
        assert most_nodes >= 4

        async with asyncio.timeout(WAIT_S):
            # The shell and the worker of one node are left.
            while len(small.attention_node_processes()) > 2:  # noqa: ASYNC110 - another process shrinks it
                await asyncio.sleep(1.0)
        assert len(await asyncio.to_thread(small.nodes)) == 1
