"""Several weight nodes of one stack: all serve, and what one was generating when it died goes on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.stack import WAIT_S, Stack, Stream, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2.json").read_text())
pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(600)]

NUM_TOKENS = 64
NODE = "x-kernelflume-weight-node"


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    flags = ("--weight-nodes", "2", "--attention-nodes", "1", "--attention-node-memory", "128MiB")
    # Two weight nodes load their weights at once with it.
    with serve(tmp_path, *flags, KERNELFLUME_SCALER_OPERATION_DEADLINE_S=str(WAIT_S)) as running:
        yield running


async def node_of(stack: Stack) -> str:
    body = {"prompt": "Hi", "max_tokens": 24, "ignore_eos": True}
    async with httpx.AsyncClient(timeout=WAIT_S) as client:
        answer = await client.post(f"{stack.url}/v1/completions", json=body)
    node: str = answer.headers[NODE]
    return node


async def wait_long(streams: list[Stream], num_tokens: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while not all(len(stream.token_ids) >= num_tokens for stream in streams):  # noqa: ASYNC110 - they grow
            await asyncio.sleep(0.01)


SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.2, "presence_penalty": 0.5, "min_tokens": 40},
    {"temperature": 0.8, "top_p": 0.9, "seed": 11},
]


async def run_all(stack: Stack, jobs: list[tuple[list[int], dict[str, Any]]], streams: list[Stream]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for (prompt, sampling), stream in zip(jobs, streams, strict=True):
            tasks.create_task(stack.stream(prompt, NUM_TOKENS, stream, **sampling))


async def test_streams_of_a_killed_weight_node_go_on_with_the_same_tokens(stack: Stack) -> None:
    prompts = [GOLDEN[name]["prompt"] for name in ("story", "code_c")]
    jobs = [(prompt, sampling) for prompt in prompts for sampling in SAMPLINGS]
    await stack.wait_serving(2)
    expected = [Stream() for _ in jobs]
    await run_all(stack, jobs, expected)
    assert all(len(stream.token_ids) == NUM_TOKENS for stream in expected)
    assert [expected[0].token_ids[:48], expected[len(SAMPLINGS)].token_ids[:48]] == [
        GOLDEN[name]["output"] for name in ("story", "code_c")
    ]
    status = stack.status()["weight_nodes"]
    assert sorted((node["node_id"], node["role"]) for node in status) == [("w-1", "both"), ("w-2", "both")]

    streams = [Stream() for _ in jobs]
    running = asyncio.create_task(run_all(stack, jobs, streams))
    await wait_long(streams, 10)
    stack.weight_node_process("w-1").kill()
    await running
    assert [stream.token_ids for stream in streams] == [stream.token_ids for stream in expected]
    assert {stream.finish_reason for stream in streams} == {"length"}
    shown = await stack.metrics()
    # Streams were shared out evenly, so some were on the one that died.
    resumed = shown.partition('router_resumptions_total{outcome="resumed"} ')[2].split()[0]
    assert float(resumed) >= 1

    # It is started again, and serves.
    await stack.wait_serving(2)
    assert set(await asyncio.gather(*(node_of(stack) for _ in range(6)))) == {"w-1", "w-2"}
    await stack.wait_baseline()
