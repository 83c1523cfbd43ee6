"""Gaps between tokens while attention nodes come and go (paper section 6.2).

    python -m benchmarks.elasticity [--streams 8] [--tokens 400] [--nodes 1,3,1] [--rounds 3]

Streams decode over HTTP; once all have 40 tokens the number of attention nodes is changed in turn, each
change waited for. Three figures for each change: the longest gap of any stream between its start and its end,
the same as a multiple of that stream's median gap, and how long it took. As a control, the longest gap of a
run in which nothing changes. The route install times are the weight node's own histogram.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx
from benchmarks.decode import COMMAND, prompts, serve_command, server
from benchmarks.histogram import upper_bounds

from kernelflume.runtime.service import free_port

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(slots=True)
class Event:
    """One change of the number of nodes."""

    name: str
    started: float
    ended: float = 0.0


@dataclass(slots=True)
class Streams:
    """Arrival times of every stream's tokens, and what happened meanwhile."""

    arrivals: list[list[float]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def worst(self, started: float, ended: float) -> tuple[float, float]:
        """Return the longest gap that overlaps a time, in seconds, and the most medians of its stream."""
        longest, multiple = 0.0, 0.0
        for arrivals in self.arrivals:
            gaps = list(itertools.pairwise(arrivals))
            median = statistics.median(b - a for a, b in gaps)
            for a, b in gaps:
                if b > started and a < ended:
                    longest, multiple = max(longest, b - a), max(multiple, (b - a) / median)
        return longest, multiple


async def stream(
    client: httpx.AsyncClient, url: str, prompt: str, tokens: int, arrivals: list[float]
) -> None:
    """Decode one stream, noting when each token came."""
    body = {"model": "smollm2", "prompt": prompt, "max_tokens": tokens, "temperature": 0}
    body |= {"ignore_eos": True, "stream": True, "return_token_ids": True}
    async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line[6:]).get("choices")
                if choices and choices[0].get("token_ids"):
                    arrivals.append(time.perf_counter())


async def scale(scaler: str, num_nodes: int) -> None:
    """Change the number of attention nodes and wait until it is so."""
    command = (*COMMAND, "scale", "--attention-nodes", str(num_nodes), "--wait", "--scaler", scaler)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    if await asyncio.wait_for(process.wait(), 300):
        raise SystemExit(f"scaling to {num_nodes} failed")


async def run(url: str, scaler: str, options: argparse.Namespace, nodes: Sequence[int]) -> Streams:
    """Decode all streams, and change the number of nodes while they do."""
    found = Streams([[] for _ in range(options.streams)])
    async with httpx.AsyncClient(timeout=600) as client, asyncio.TaskGroup() as tasks:
        for prompt, arrivals in zip(prompts(options.streams), found.arrivals, strict=True):
            tasks.create_task(stream(client, url, prompt, options.tokens, arrivals))
        while min(map(len, found.arrivals)) < 40:  # noqa: ASYNC110 - filled by other tasks
            await asyncio.sleep(0.02)
        for before, after in itertools.pairwise(nodes):
            event = Event(f"{before} to {after}", time.perf_counter())
            found.events.append(event)
            await scale(scaler, after)
            event.ended = time.perf_counter()
            await asyncio.sleep(2.0)
    if nodes[-1:] != nodes[:1]:
        await scale(scaler, nodes[0])
    return found


def route_installs(metrics_port: int) -> str:
    """Return the weight node's route install histogram in words."""
    total, (p50, p99) = upper_bounds(metrics_port, "kernelflume_route_install_seconds", 0.5, 0.99)
    return f"{total} installs: p50 at most {p50 * 1e6:.0f} us, p99 at most {p99 * 1e6:.0f} us"


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--nodes", default="1,3,1")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    nodes = [int(count) for count in options.nodes.split(",")]
    port, scaler_port, metrics_port = free_port(), free_port(), free_port()
    os.environ["KERNELFLUME_WNODE_METRICS_PORT"] = str(metrics_port)
    rows: dict[str, list[tuple[float, float, float]]] = {}
    with tempfile.TemporaryDirectory() as logs:
        command = serve_command(port, "--scaler-port", str(scaler_port))
        command += ["--log-dir", logs, "--attention-nodes", str(nodes[0])]
        with server(command, port, "/ready") as url:
            for _ in range(options.rounds):
                for plan in (nodes[:1], nodes):
                    found = asyncio.run(run(url, f"127.0.0.1:{scaler_port}", options, plan))
                    steady = Event("none", found.arrivals[0][40], found.arrivals[0][-1])
                    for event in found.events or [steady]:
                        longest, multiple = found.worst(event.started, event.ended)
                        rows.setdefault(event.name, []).append(
                            (longest, multiple, event.ended - event.started)
                        )
            installs = route_installs(metrics_port)
    print("| change | longest gap, ms | in medians of its stream | seconds |\n|---|---|---|---|")
    for name, found_rows in rows.items():
        gaps, multiples, seconds = (
            " / ".join(f"{row[column] * unit:.{digits}f}" for row in found_rows)
            for column, unit, digits in ((0, 1e3, 0), (1, 1, 1), (2, 1, 1))
        )
        print(f"| {name} | {gaps} | {multiples} | {seconds} |")
    print(installs)


if __name__ == "__main__":
    main()
