"""Several weight nodes of one stack: all serve, and what one was generating when it died goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest
from tests.stack import WAIT_S, Stack, Stream, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2.json").read_text())
NUM_TOKENS = 160
NODE = "x-kernelflume-weight-node"


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    flags = ("--weight-nodes", "2", "--attention-nodes", "1", "--attention-node-memory", "128MiB")
    with serve(tmp_path, *flags) as running:
        yield running


def weight_node(stack: Stack, node_id: str) -> psutil.Process:
    for child in stack.descendants:
        with contextlib.suppress(psutil.Error):  # it ends just now
            words = child.cmdline()
            if "kernelflume.wnode" in words and node_id in words:
                return child
    raise AssertionError(f"there is no weight node {node_id}")


async def node_of(stack: Stack, session: str) -> str:
    body = {"prompt": "Hi", "max_tokens": 1}
    async with httpx.AsyncClient(timeout=WAIT_S) as client:
        answer = await client.post(
            f"{stack.url}/v1/completions", json=body, headers={"x-session-id": session}
        )
    node: str = answer.headers[NODE]
    return node


async def wait_long(streams: list[Stream], num_tokens: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while not all(len(stream.token_ids) >= num_tokens for stream in streams):  # noqa: ASYNC110 - they grow
            await asyncio.sleep(0.01)


SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.2, "presence_penalty": 0.5, "min_tokens": 100},
    {"temperature": 0.8, "top_p": 0.9, "seed": 11},
    {"guided_regex": "([a-z]{2,9} ){150}"},
]


async def test_streams_of_a_killed_weight_node_go_on_with_the_same_tokens(stack: Stack) -> None:
    prompts = [GOLDEN[name]["prompt"] for name in ("story", "code_c")]
    jobs = [(prompt, sampling) for prompt in prompts for sampling in SAMPLINGS]
    expected = [
        (await stack.stream(prompt, NUM_TOKENS, Stream(), **sampling)).token_ids for prompt, sampling in jobs
    ]
    assert all(len(tokens) == NUM_TOKENS for tokens in expected)
    status = stack.status()["weight_nodes"]
    assert sorted((node["node_id"], node["role"]) for node in status) == [("w-1", "both"), ("w-2", "both")]

    streams = [Stream() for _ in jobs]
    async with asyncio.TaskGroup() as tasks:
        for (prompt, sampling), stream in zip(jobs, streams, strict=True):
            tasks.create_task(stack.stream(prompt, NUM_TOKENS, stream, **sampling))
        await wait_long(streams, 20)
        busy = {node["node_id"]: node["num_requests_running"] for node in stack.status()["weight_nodes"]}
        weight_node(stack, "w-1").kill()
    assert [stream.token_ids for stream in streams] == expected
    assert {stream.finish_reason for stream in streams} == {"length"}
    # Both had some, so the dead one's were moved.
    assert set(busy) == {"w-1", "w-2"}
    assert all(busy.values())

    # It is started again, and serves.
    async with asyncio.timeout(WAIT_S):
        number = 0
        while await node_of(stack, str(number)) != "w-1":
            number += 1
            await asyncio.sleep(0.1)
    await stack.wait_baseline()
