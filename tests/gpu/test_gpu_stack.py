"""The served model on one or two GPUs: tokens, scale events and a lost node, on both data paths."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import httpx
import pytest
import torch
from tests.golden.prompts import NUM_TOKENS
from tests.stack import Stack, Stream, serve

from kernelflume.runtime.service import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Recorder: TypeAlias = "Callable[[str, object], None]"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.timeout(500),
]

GOLDEN: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "smollm2.json").read_text(encoding="utf-8")
)


class GpuStack:
    """A stack, and its weight node's metrics."""

    def __init__(self, stack: Stack, metrics_port: int) -> None:
        self.stack = stack
        self._url = f"http://127.0.0.1:{metrics_port}/metrics"

    async def metric(self, name: str) -> float:
        """Return a figure after the engine has had the time to report it."""
        await asyncio.sleep(2)
        async with httpx.AsyncClient() as client:
            text = (await client.get(self._url)).text
        [value] = re.findall(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(value)

    async def tokens(self, width: int = 16, **fields: Any) -> dict[str, list[int]]:
        """Return the greedy tokens of every golden prompt, ``width`` requests at once."""
        gate = asyncio.Semaphore(width)

        async def one(prompt: list[int]) -> list[int]:
            async with gate:
                return await self.stack.generate(prompt, NUM_TOKENS, **fields)

        names = list(GOLDEN)
        answers = await asyncio.gather(*(one(GOLDEN[name]["prompt"]) for name in names))
        return dict(zip(names, answers, strict=True))


def on_gpus(folder: Path, dtype: str, *flags: str, **environment: str) -> Iterator[GpuStack]:
    port = free_port()
    last = torch.cuda.device_count() - 1
    settings = {"KERNELFLUME_WNODE_METRICS_PORT": str(port)} | environment
    devices = ("--device", "cuda:0", "--attention-devices", f"cuda:{last}")
    with serve(folder, "--attention-nodes", "1", "--dtype", dtype, *devices, *flags, **settings) as stack:
        yield GpuStack(stack, port)


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuStack]:
    """Float32, with ranges so short that every sequence lies on every node."""
    yield from on_gpus(tmp_path_factory.mktemp("exact"), "float32", KERNELFLUME_WNODE_MAX_RANGE_TOKENS="64")


@pytest.fixture(scope="module", params=["device", "host"])
def graphs(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[GpuStack]:
    """Bfloat16 with captured graphs, on either path, with ranges of 64 tokens."""
    yield from on_gpus(
        tmp_path_factory.mktemp("graphs"),
        "bfloat16",
        KERNELFLUME_WNODE_MAX_RANGE_TOKENS="64",
        KERNELFLUME_WNODE_DATA_PATH=request.param,
    )


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[GpuStack]:
    """As ``graphs``, with keys and values in FP8."""
    yield from on_gpus(
        tmp_path,
        "bfloat16",
        *("--kv-cache-dtype", "fp8"),
        KERNELFLUME_WNODE_MAX_RANGE_TOKENS="64",
        KERNELFLUME_WNODE_DATA_PATH="device",
    )


@pytest.mark.parametrize("num_nodes", [1, 3])
async def test_greedy_tokens_in_float32_are_the_cpu_s(exact: GpuStack, num_nodes: int) -> None:
    await asyncio.to_thread(exact.stack.scale, num_nodes)
    found = await exact.tokens()
    assert found == {name: golden["output"] for name, golden in GOLDEN.items()}


def agreement(found: dict[str, list[int]]) -> float:
    """Share of tokens before the first that differs from float32's: bfloat16 rounds to 8 bits."""
    same = 0
    for name, golden in GOLDEN.items():
        pairs = zip(found[name], golden["output"], strict=True)
        same += next((index for index, (a, b) in enumerate(pairs) if a != b), NUM_TOKENS)
    return same / (NUM_TOKENS * len(GOLDEN))


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 4])
async def test_graph_steps_agree_with_float32_as_far_as_they_can(
    graphs: GpuStack, num_nodes: int, record_property: Recorder
) -> None:
    await asyncio.to_thread(graphs.stack.scale, num_nodes)
    captures, steps = (
        await graphs.metric("kernelflume_graph_captures"),
        await graphs.metric("kernelflume_graph_steps_total"),
    )
    found = await graphs.tokens()
    share = agreement(found)
    record_property("share of tokens before the first that differs", share)
    assert share > 0.5
    assert await graphs.metric("kernelflume_graph_captures") == captures > 0
    assert await graphs.metric("kernelflume_graph_steps_total") > steps
    assert await graphs.metric("kernelflume_microbatches") in (1, 2)
    assert await graphs.metric('kernelflume_stage_seconds{stage="projection"}') > 0
    await graphs.stack.wait_baseline()


@pytest.mark.parametrize("microbatches", ["2", "4"])
async def test_microbatches_agree_with_float32_as_far_as_they_can(
    tmp_path: Path, microbatches: str, record_property: Recorder
) -> None:
    settings = {"KERNELFLUME_WNODE_MICROBATCHES": microbatches, "KERNELFLUME_WNODE_MAX_RANGE_TOKENS": "64"}
    for split in on_gpus(tmp_path, "bfloat16", **settings):
        await asyncio.to_thread(split.stack.scale, 2)
        share = agreement(await split.tokens())
        record_property("share of tokens before the first that differs", share)
        assert share > 0.5
        assert await split.metric("kernelflume_microbatches") == int(microbatches)


async def test_graph_steps_with_fp8_keys_and_values(narrow: GpuStack, record_property: Recorder) -> None:
    steps = await narrow.metric("kernelflume_graph_steps_total")
    for num_nodes in (1, 3):
        await asyncio.to_thread(narrow.stack.scale, num_nodes)
        share = agreement(await narrow.tokens())
        record_property(f"share of tokens before the first that differs, {num_nodes} nodes", share)
        # One of 40 tokens is another (benchmarks/kv_accuracy.py), and all after it.
        assert share > 0.3
    assert await narrow.metric("kernelflume_graph_steps_total") > steps


async def test_scale_events_under_streams_capture_nothing_and_lose_no_token(
    graphs: GpuStack, record_property: Recorder
) -> None:
    await asyncio.to_thread(graphs.stack.scale, 1)
    captures = await graphs.metric("kernelflume_graph_captures")
    prompts = [golden["prompt"][:200] for golden in GOLDEN.values()][:8]
    streams = [Stream() for _ in prompts]
    running = [
        asyncio.create_task(graphs.stack.stream(prompt, 600, stream))
        for prompt, stream in zip(prompts, streams, strict=True)
    ]
    for num_nodes in (3, 2, 4, 1):
        await asyncio.to_thread(graphs.stack.scale, num_nodes)
    await asyncio.gather(*running)
    assert [len(stream.token_ids) for stream in streams] == [600] * len(streams)
    assert await graphs.metric("kernelflume_graph_captures") == captures
    gaps = sorted(gap for stream in streams for gap in stream.gaps)
    record_property("gap p50 s", gaps[len(gaps) // 2])
    record_property("gap p99 s", gaps[len(gaps) * 99 // 100])
    await graphs.stack.wait_baseline()


async def test_a_killed_node_costs_only_recomputation(graphs: GpuStack) -> None:
    await asyncio.to_thread(graphs.stack.scale, 2)
    prompts = [golden["prompt"][:200] for golden in GOLDEN.values()][:6]
    streams = [Stream() for _ in prompts]
    running = [
        asyncio.create_task(graphs.stack.stream(prompt, 400, stream))
        for prompt, stream in zip(prompts, streams, strict=True)
    ]
    while min(len(stream.token_ids) for stream in streams) < 40:  # noqa: ASYNC110 - streams tell nobody
        await asyncio.sleep(0.01)
    victim = graphs.stack.attention_node_processes()[0]
    victim.kill()
    await asyncio.gather(*running)
    assert [len(stream.token_ids) for stream in streams] == [400] * len(streams)
    # The other node goes on: it is not dropped with the one that died.
    log = (graphs.stack.log_dir / "wnode.log").read_text(encoding="utf-8")
    assert log.count('"message": "peer ') == 1, log
