"""Sessions that come back, end early and crowd each other out leave no page unaccounted for."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.router_parts import write_model
from tests.stack import WAIT_S, Stack, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(1500)]

NUM_SESSIONS = 1000
NUM_AT_ONCE = 8
MAX_TURNS = 3
MAX_NEW_TOKENS = 48
CANCELLED = 0.2
"""Share of the turns whose client leaves after the first token."""
SHARED = [list(range(3, 3 + length)) for length in (16, 33, 40)]
"""Beginnings that sessions have in common."""
SHAPE = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A tiny model of random weights; pools of so few pages that sessions take them from each other."""
    folder = write_model(tmp_path_factory.mktemp("model"))
    (folder / "model.safetensors").unlink()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    shape = SHAPE | {"intermediate_size": 96, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config | shape), encoding="utf-8")
    with serve(
        tmp_path_factory.mktemp("logs"),
        *("--attention-nodes", "2", "--weight-nodes", "2", "--attention-node-memory", "1MiB"),
        *("--load-format", "dummy", "--dtype", "float32", "--served-model-name", "smollm2"),
        model=str(folder),
        KERNELFLUME_ANODE_PAGE_TOKENS="16",
        KERNELFLUME_WNODE_MAX_RANGE_TOKENS="64",
    ) as served:
        yield served


async def play(stack: Stack, client: httpx.AsyncClient, draw: random.Random) -> int:
    """Play one session of some turns, each on what the last one left; return how many tokens were cached."""
    context = list(draw.choice(SHARED))
    num_cached = 0
    for _ in range(draw.randint(1, MAX_TURNS)):
        context += [draw.randint(3, 40) for _ in range(draw.randint(1, MAX_NEW_TOKENS))]
        body = {"model": "smollm2", "prompt": context, "max_tokens": draw.randint(1, 8), "ignore_eos": True}
        if draw.random() < CANCELLED:
            await leave_early(stack, client, body)
            continue
        answer = await client.post(f"{stack.url}/v1/completions", json=body | {"return_token_ids": True})
        assert answer.status_code == 200, answer.text
        told = answer.json()
        num_cached += told["usage"]["prompt_tokens_details"]["cached_tokens"]
        context += told["choices"][0]["token_ids"]
    return num_cached


async def leave_early(stack: Stack, client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    async with client.stream("POST", f"{stack.url}/v1/completions", json=body | {"stream": True}) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                return


async def test_no_page_is_unaccounted_for(stack: Stack) -> None:
    draws = iter([random.Random(number) for number in range(NUM_SESSIONS)])  # noqa: S311 - no secret
    num_cached = 0

    async def player(client: httpx.AsyncClient) -> None:
        nonlocal num_cached
        for draw in draws:
            num_cached += await play(stack, client, draw)

    async with httpx.AsyncClient(timeout=WAIT_S) as client, asyncio.TaskGroup() as tasks:
        players = [tasks.create_task(player(client)) for _ in range(NUM_AT_ONCE)]
        while not all(task.done() for task in players):
            # ``command`` fails with what is wrong; what moves while it looks is no fault.
            await asyncio.to_thread(stack.command, "status", "--check")
    assert num_cached > NUM_SESSIONS
    await stack.wait_baseline()
    told = json.loads(await asyncio.to_thread(stack.command, "status", "--check", "--json"))
    assert told["faults"] == []
    for node in told["nodes"]:
        assert node["num_sequences"] == 0
        assert node["num_free_pages"] + node["num_cached_pages"] == node["num_pages"]
    assert sum(node.pages_evicted for node in await stack.statistics()) > 0
