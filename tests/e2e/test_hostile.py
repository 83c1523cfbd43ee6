"""What nobody does on purpose, to a served stack under load: every token is the one of a quiet run."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import psutil
import pytest
from tests.golden.prompts import PROMPTS
from tests.stack import WAIT_S, Stack, Stream, serve
from tests.valkey import ValkeyProcess, running_valkey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(1200)]

NUM_TOKENS = 150
POLICY = "minimum_nodes: 2\nmaximum_nodes: 3\n"
SHORT = [prompt for prompt in PROMPTS.values() if len(prompt) < 400][:6]


@pytest.fixture(scope="module")
def valkey_server() -> Iterator[ValkeyProcess]:
    with running_valkey() as server:
        yield server


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("hostile") / "policy.yaml"
    path.write_text(POLICY)
    return path


@pytest.fixture(scope="module")
def stack(valkey_server: ValkeyProcess, policy: Path) -> Iterator[Stack]:
    flags = ("--redis-url", valkey_server.url, "--scaling-policy", str(policy))
    with serve(policy.parent / "logs", *flags) as served:
        yield served


@asynccontextmanager
async def under_load(stack: Stack) -> AsyncIterator[None]:
    """Have streams decode during the block; afterwards no token may differ and no request have failed."""
    expected = await asyncio.gather(*(stack.generate(prompt, NUM_TOKENS) for prompt in SHORT))
    streams = [Stream() for _ in SHORT]
    async with asyncio.TaskGroup() as tasks:
        for prompt, stream in zip(SHORT, streams, strict=True):
            tasks.create_task(stack.stream(prompt, NUM_TOKENS, stream))
        while min(len(stream.token_ids) for stream in streams) < 20:  # noqa: ASYNC110 - filled by other tasks
            await asyncio.sleep(0.05)
        yield
    assert [stream.token_ids for stream in streams] == expected


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await asyncio.to_thread(holds):  # noqa: ASYNC110 - other processes change it
            await asyncio.sleep(0.3)


def spoil(policy: Path) -> None:
    """Leave in the file's place what editors, mounts and mistakes may, and a good edit at last."""
    for content in (b"automatic: !!bool x", b"[" * 5000, b"\xff", b"gamma: 2024-99-99", b"maximum_no"):
        policy.write_bytes(content)
        time.sleep(1.2)  # it is read once a second
    policy.unlink()
    os.mkfifo(policy)
    time.sleep(1.2)
    policy.unlink()
    policy.write_text(POLICY.replace("3", "4"))


def recomputations(stack: Stack) -> int:
    return (stack.log_dir / "wnode.log").read_text().count("recomputing")


async def test_no_content_of_the_policy_file_ends_or_stops_anything(stack: Stack, policy: Path) -> None:
    async with under_load(stack):
        await asyncio.to_thread(spoil, policy)
        await eventually(lambda: "maximum_nodes: 4" in stack.command("policy", "show"))
    assert stack.process.poll() is None


async def test_a_store_that_starts_again_empty_costs_no_recomputation(
    stack: Stack, valkey_server: ValkeyProcess
) -> None:
    before, epoch = recomputations(stack), (await asyncio.to_thread(stack.status))["epoch"]
    async with under_load(stack):
        valkey_server.kill()
        await asyncio.sleep(1)
        valkey_server.start()
        await eventually(lambda: bool(stack.nodes()))
    assert recomputations(stack) == before
    assert (await asyncio.to_thread(stack.status))["epoch"] >= epoch


async def test_a_frozen_attention_node_is_replaced_and_costs_no_token(stack: Stack) -> None:
    async with under_load(stack):
        [frozen, *_] = await asyncio.to_thread(stack.nodes)
        words = {process: " ".join(process.cmdline()).split() for process in stack.attention_node_processes()}
        shell = next(
            process
            for process, said in words.items()
            if frozen["node_id"] in said and "kernelflume.anode.worker" not in said
        )
        for process in (shell, *shell.children()):
            process.send_signal(signal.SIGSTOP)
    await eventually(lambda: len(stack.nodes()) == 2 and not psutil.pid_exists(shell.pid))
    assert frozen["node_id"] not in {node["node_id"] for node in await asyncio.to_thread(stack.nodes)}
