"""Gaps between tokens while the policy grows the pool under streams that outgrow it (paper section 4.2).

    python -m benchmarks.policy_growth [--streams 16] [--tokens 250] [--node-memory 64MiB] [--rounds 2]

Streams decode over HTTP from short prompts until their keys and values take several times one node's memory.
For each operation of the policy: the longest gap of any stream from its beginning to its end (prewarm and
publish, or drain), as a multiple of that stream's median gap. As a control, the same of one large node that
nothing changes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from benchmarks.decode import prompts, serve_command, server
from benchmarks.elasticity import Event, Streams, stream

from kernelflume.runtime.service import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

POLICY = """
maximum_nodes: 6
gamma: 0.8
scale_down_cooldown_s: 10
silence_s: 5
"""
_BEGINS = re.compile(r"operation (\S+) begins: (\d+) -> (\d+) attention nodes")
_ENDS = re.compile(r"operation (\S+): \w+ -> (?:done|ended)")


async def run(url: str, num_streams: int, num_tokens: int) -> Streams:
    """Decode all streams."""
    found = Streams([[] for _ in range(num_streams)])
    async with httpx.AsyncClient(timeout=900) as client, asyncio.TaskGroup() as tasks:
        for prompt, arrivals in zip(prompts(num_streams), found.arrivals, strict=True):
            tasks.create_task(stream(client, url, prompt, num_tokens, arrivals))
    return found


def operations(log: Path, *, shift: float) -> Iterator[Event]:
    """Read a scaler's log, on the clock of ``arrivals``; what is under way ends with the log."""
    begun: dict[str, Event] = {}
    last = 0.0
    for line in log.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        last = datetime.fromisoformat(record["time"]).timestamp() + shift
        if match := _BEGINS.search(record["message"]):
            begun[match[1]] = Event(f"{match[2]} to {match[3]}", last)
        elif (match := _ENDS.search(record["message"])) and match[1] in begun:
            begun[match[1]].ended = last
    for event in begun.values():
        event.ended = event.ended or last
        yield event


def measure(options: argparse.Namespace, *flags: str) -> tuple[Streams, list[Event]]:
    """Serve, decode, and return the streams with what the scaler did meanwhile."""
    port, scaler_port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as logs:
        command = serve_command(port, "--scaler-port", str(scaler_port))
        with server([*command, "--log-dir", logs, *flags], port, "/ready") as url:
            shift = time.perf_counter() - time.time()
            found = asyncio.run(run(url, options.streams, options.tokens))
            return found, list(operations(Path(logs, "scaler.log"), shift=shift))


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=250)
    parser.add_argument("--node-memory", default="64MiB")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    os.environ["KERNELFLUME_ANODE_PAGE_TOKENS"] = "16"
    print(
        "| round | operation | seconds | longest gap, ms | in medians of its stream |\n|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder, "policy.yaml")
        policy.write_text(POLICY, encoding="utf-8")
        small = ("--attention-nodes", "1", "--attention-node-memory", options.node_memory)
        for number in range(1, options.rounds + 1):
            for flags in (("--attention-nodes", "1"), (*small, "--scaling-policy", str(policy))):
                found, events = measure(options, *flags)
                first = max(arrivals[0] for arrivals in found.arrivals)
                last = min(arrivals[-1] for arrivals in found.arrivals)
                during = [event for event in events if event.started < last and event.ended > first]
                for event in during or [Event("none (one large node)", first, last)]:
                    longest, multiple = found.worst(max(event.started, first), min(event.ended, last))
                    seconds = event.ended - event.started
                    print(
                        f"| {number} | {event.name} | {seconds:.1f} | {longest * 1e3:.0f} | {multiple:.1f} |"
                    )


if __name__ == "__main__":
    main()
