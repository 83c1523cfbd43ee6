"""A served model for end-to-end tests: `kernelflume serve` in its own process, spoken to as by a user."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import psutil
from grpc.aio import insecure_channel

from kernelflume.rpc.v1 import anode_pb2, anode_pb2_grpc, wnode_pb2, wnode_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WAIT_S = 240.0
"""Longest wait for anything: generous, for the machine may be busy."""
COMMAND = [sys.executable, "-m", "kernelflume.cli.main"]


@dataclass
class Stream:
    """One streamed completion and when its tokens came."""

    token_ids: list[int] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    finish_reason: str | None = None

    @property
    def gaps(self) -> list[float]:
        """Seconds between tokens."""
        return [later - earlier for earlier, later in zip(self.arrivals, self.arrivals[1:], strict=False)]


class Stack:
    """Where a served model listens, and what processes it has."""

    def __init__(self, process: subprocess.Popen[str], ready_line: str, log_dir: Path) -> None:
        self.process = process
        self.log_dir = log_dir
        self.url = ready_line.split()[1]
        self.scaler = ready_line.partition("(scaler ")[2].partition(",")[0]

    @property
    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def command(self, *arguments: str) -> str:
        """Run a `kernelflume` subcommand against this stack and return what it printed."""
        done = subprocess.run(
            [*COMMAND, *arguments, "--scaler", self.scaler],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(self.command("status", "--json"))
        return fields

    def nodes(self, state: str = "active") -> list[dict[str, Any]]:
        return [node for node in self.status()["attention_nodes"] if node["state"] == state]

    def scale(self, num_nodes: int) -> str:
        return self.command("scale", "--attention-nodes", str(num_nodes), "--wait")

    def weight_node_process(self, node_id: str) -> psutil.Process:
        for child in self.descendants:
            with contextlib.suppress(psutil.Error):  # it ends just now
                words = child.cmdline()
                if "kernelflume.wnode" in words and node_id in words:
                    return child
        raise AssertionError(f"there is no weight node {node_id}")

    def attention_node_processes(self) -> list[psutil.Process]:
        """Return shells and workers, without the process that forks them."""
        found = []
        for child in self.descendants:
            with contextlib.suppress(psutil.Error):  # it ends just now
                words = " ".join(child.cmdline())
                if "kernelflume.anode" in words and "kernelflume.anode.forkserver" not in words:
                    found.append(child)
        return found

    async def statistics(self) -> list[anode_pb2.AttentionStatistics]:
        """Ask every active attention node itself."""
        found = []
        for node in self.nodes():
            async with insecure_channel(node["address"]) as channel:
                stub = anode_pb2_grpc.AttentionNodeStub(channel)
                found.append(
                    await stub.GetStatistics(anode_pb2.GetAttentionStatisticsRequest(), timeout=WAIT_S)
                )
        return found

    async def generate(self, prompt: list[int] | str, max_tokens: int, **fields: Any) -> list[int]:
        """Return the greedy tokens of one completion."""
        answer = await self.complete(prompt, max_tokens, **fields)
        token_ids: list[int] = answer["choices"][0]["token_ids"]
        return token_ids

    async def complete(
        self, prompt: list[int] | str, max_tokens: int, *, key: str = "unused", **fields: Any
    ) -> dict[str, Any]:
        """Return the answer to a request for one greedy completion."""
        body = {"model": "smollm2", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        async with httpx.AsyncClient(timeout=WAIT_S, headers={"authorization": f"Bearer {key}"}) as client:
            answer = await client.post(
                f"{self.url}/v1/completions",
                json=body | {"ignore_eos": True, "return_token_ids": True} | fields,
            )
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def stream(self, prompt: list[int] | str, max_tokens: int, into: Stream, **fields: Any) -> Stream:
        """Stream one greedy completion; ``into`` grows while it runs."""
        body = {"model": "smollm2", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        body |= {"ignore_eos": True, "return_token_ids": True, "stream": True} | fields
        async with (
            httpx.AsyncClient(timeout=WAIT_S) as client,
            client.stream("POST", f"{self.url}/v1/completions", json=body) as answer,
        ):
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                [choice] = json.loads(line.removeprefix("data: "))["choices"] or [None]
                if choice is None:
                    continue
                now = time.monotonic()
                new = choice.get("token_ids") or []
                into.token_ids.extend(new)
                into.arrivals.extend([now] * bool(new))
                into.finish_reason = choice.get("finish_reason") or into.finish_reason
        return into

    async def metrics(self) -> str:
        """Return the router's metrics."""
        async with httpx.AsyncClient(timeout=WAIT_S) as client:
            return (await client.get(f"{self.url}/metrics")).text

    async def wait_serving(self, num_weight_nodes: int) -> None:
        """Wait until the router can use so many weight nodes; it is ready with one."""
        serving = f'weight_nodes{{serving="true"}} {num_weight_nodes}.0'
        async with asyncio.timeout(WAIT_S):
            while serving not in await self.metrics():  # noqa: ASYNC110 - it is another process
                await asyncio.sleep(0.05)

    async def wait_baseline(self) -> None:
        """Wait until no attention node holds a token.

        Raises:
            AssertionError: some are still held in the end.
        """
        held: list[int] = []
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            held = [node.num_tokens for node in await self.statistics()]
            if not any(held):
                return
            await asyncio.sleep(0.5)
        raise AssertionError(f"tokens are still held: {held}")


def cached_tokens(answer: dict[str, Any]) -> int:
    """Return how many prompt tokens of an answer were found in the prefix cache."""
    cached: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached


async def ask_away(addresses: list[str]) -> int:
    """Ask every weight node to have its requests moved; return of how many that was asked."""
    num_asked = 0
    for address in addresses:
        async with insecure_channel(address) as channel:
            stub = wnode_pb2_grpc.WeightNodeStub(channel)
            answer = await stub.MoveRequests(wnode_pb2.MoveRequestsRequest(), timeout=WAIT_S)
            num_asked += answer.num_asked
    return num_asked


@contextlib.contextmanager
def serve(log_dir: Path, *arguments: str, model: str = "smollm2", **environment: str) -> Iterator[Stack]:
    """Serve a model, the small real one by default; whatever happens, no process is left behind."""
    flags = ["--port", "0", "--scaler-port", "0", "--log-dir", str(log_dir), "--start-timeout", str(WAIT_S)]
    process = subprocess.Popen(
        [*COMMAND, "serve", model, *flags, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("ready:"):
        raise AssertionError(process.communicate()[1])
    descendants = psutil.Process(process.pid).children(recursive=True)
    try:
        yield Stack(process, line, log_dir)
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        _, alive = psutil.wait_procs(descendants, timeout=120)
        assert not alive, [child.cmdline() for child in alive]
