"""Sessions, roles and cached prompts on weight nodes that a router really talks to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.router_parts import Event, counting, eventually, router, weight_node, write_model

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NODE = "x-kernelflume-weight-node"
STICKY = {"policy": "sticky", "overload_factor": 1000.0}
PROMPT = list(range(60, 120))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def body(prompt: Any = "a", **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": 4} | fields


def cached(num_tokens: int) -> Any:
    """Return a script that finds so many tokens of each prompt."""

    async def script(request: Any) -> AsyncIterator[Any]:
        yield Event(token_ids=[100], num_cached_tokens=num_tokens)
        yield Event(token_ids=[101, 102, 103], finish_reason="length")

    return script


async def test_a_prompt_with_several_choices_counts_once_as_the_choice_that_found_least(folder: Path) -> None:
    found = iter([48, 16, 32, 40])

    def script(request: Any) -> AsyncIterator[Any]:
        told: AsyncIterator[Any] = cached(next(found))(request)
        return told

    async with (
        weight_node(folder, script) as node,
        router(folder, [node]) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        answer = await client.post("/v1/completions", json=body([PROMPT, [*PROMPT, 1]], n=2))
        usage = answer.json()["usage"]
        assert usage["prompt_tokens"] == 2 * len(PROMPT) + 1
        assert usage["prompt_tokens_details"] == {"cached_tokens": 16 + 32}


@pytest.mark.parametrize(("block_tokens", "on_first"), [(16, 3), (0, 2)])
async def test_choices_of_a_long_prompt_go_to_one_node_as_far_as_they_run_there(
    folder: Path, block_tokens: int, on_first: int
) -> None:
    """Without names of blocks none would find what another computed, so they are placed as any."""
    started = asyncio.Barrier(4)

    async def together(request: Any) -> AsyncIterator[Any]:
        await started.wait()  # all are placed before one ends
        async for event in counting()(request):
            yield event

    async with (
        weight_node(folder, together, num_tokens=1, node_id="w-1", block_tokens=block_tokens) as first,
        weight_node(folder, together, num_tokens=2, node_id="w-2", block_tokens=block_tokens) as second,
    ):
        first.card.max_num_seqs = second.card.max_num_seqs = 3
        async with (
            router(folder, [first, second], wait_for=2) as url,
            httpx.AsyncClient(base_url=url, timeout=30) as client,
        ):
            answer = await client.post("/v1/completions", json=body(PROMPT * 3, n=4))
            assert answer.status_code == 200, answer.text
            assert (len(first.requests), len(second.requests)) == (on_first, 4 - on_first)


async def node_of(client: httpx.AsyncClient, headers: dict[str, str] | None = None, **fields: Any) -> str:
    answer = await client.post("/v1/completions", json=body(**fields), headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.headers[NODE]


async def samples(client: httpx.AsyncClient, name: str) -> dict[str, float]:
    lines = (await client.get("/metrics")).text.splitlines()
    told = (line.rsplit(" ", 1) for line in lines if line.startswith(f"{name}_total{{"))
    return {labels.partition("{")[2].rstrip("}"): float(value) for labels, value in told}


@pytest.mark.parametrize(
    "named",
    [
        {"headers": {"x-session-id": "s"}},
        {"user": "s"},
        {"headers": {"x-session-id": "s"}, "user": "t"},
        {"prompt_cache_key": "s"},
        {"user": "s", "prompt_cache_key": "k"},
    ],
)
async def test_a_session_stays_on_its_node(folder: Path, named: dict[str, Any]) -> None:
    async with (
        weight_node(folder, counting(), num_tokens=1, node_id="w-1") as first,
        weight_node(folder, counting(), num_tokens=2, node_id="w-2") as second,
        router(folder, [first, second], wait_for=2, placement=STICKY) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        assert await node_of(client, **named) == "w-1"
        first.load.num_tokens = 50

        async def is_seen() -> bool:
            return await node_of(client) == "w-2"

        await eventually(is_seen)
        assert await node_of(client, **named) == "w-1"
        reasons = await samples(client, "kernelflume_router_placements")
        assert reasons['reason="affinity",request_class="warm"'] == 1


async def test_without_a_name_a_prompt_that_goes_on_is_of_the_session(folder: Path) -> None:
    async with (
        weight_node(folder, cached(0), num_tokens=1, node_id="w-1", block_tokens=4) as first,
        weight_node(folder, cached(0), num_tokens=2, node_id="w-2", block_tokens=4) as second,
        router(folder, [first, second], wait_for=2, placement=STICKY) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        assert await node_of(client, prompt=PROMPT) == "w-1"
        first.load.num_tokens = 50

        async def is_seen() -> bool:
            return await node_of(client) == "w-2"

        await eventually(is_seen)
        assert await node_of(client, prompt=[*PROMPT, 100, 101, 102, 103, *PROMPT[:9]]) == "w-1"
        # What begins alike is not the same session.
        assert await node_of(client, prompt=[*PROMPT[:40], *PROMPT[:9]]) == "w-2"


async def test_hits_are_counted_in_tokens_by_node_and_class(folder: Path) -> None:
    bounds = {"warm_tokens": 10, "heavy_tokens": 30}
    async with (
        weight_node(folder, cached(0), block_tokens=4, node_id="w-7") as node,
        router(folder, [node], placement=bounds) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        await node_of(client, prompt=PROMPT)
        node.script = cached(56)
        await node_of(client, prompt=PROMPT)
        prompts = await samples(client, "kernelflume_router_node_prompt_tokens")
        found = await samples(client, "kernelflume_router_node_cached_tokens")
        expected = await samples(client, "kernelflume_router_node_expected_cached_tokens")
        heavy, warm = (f'request_class="{name}",weight_node="w-7"' for name in ("heavy", "warm"))
        assert prompts == {heavy: 60, warm: 60}
        assert (found[warm], expected[warm]) == (56, 60)
        assert (found[heavy], expected[heavy]) == (0, 0)


async def test_a_heavy_prompt_goes_to_the_prefill_node(folder: Path) -> None:
    settings = {"policy": "ps_always", "warm_tokens": 10, "heavy_tokens": 30}
    async with (
        weight_node(folder, counting(), node_id="p", role="prefill") as prefill,
        weight_node(folder, counting(), node_id="b", role="both") as both,
        router(folder, [prefill, both], wait_for=2, placement=settings) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        assert await node_of(client) == "b"
        await client.post("/v1/completions", json=body(PROMPT))
        assert len(prefill.requests) == 1
        assert await samples(client, "kernelflume_router_divided_placements") == {'reason="heavy_prefill"': 1}


async def test_the_header_names_each_node_of_several_choices_and_pages_may_read_it(folder: Path) -> None:
    async with (
        weight_node(folder, counting(), node_id="w-1") as first,
        weight_node(folder, counting(), node_id="w-2") as second,
        router(folder, [first, second], wait_for=2, cors_origins=("*",)) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        answer = await client.post("/v1/completions", json=body(n=4), headers={"origin": "http://x"})
        assert sorted(answer.headers[NODE].split(", ")) == ["w-1", "w-2"]
        assert NODE in answer.headers["access-control-expose-headers"]
        refused = await client.post("/v1/completions", json=body(temperature=-1))
        assert NODE not in refused.headers
