"""What keys and values of prompts cost after a step's last layer: sent layer by layer, and in one write.

    python -m benchmarks.kv_stream [--prompt 2048] [--requests 6] [--rounds 3] [--step-rows 256,1024]

Prompts of random tokens are run one after the other, for one token each, so that every step has prompt rows.
The exposed time is the weight node's own counter: from a step's last layer until its keys and values
are on their way; bytes are its counter too. TTFT is the whole request over HTTP. Both ways alternate in each
round, each on a cluster of its own; medians of the rounds are shown.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import tempfile
import time
from dataclasses import dataclass

import httpx
from benchmarks.decode import COMMAND, server

from kernelflume.runtime.service import free_port

WAYS = {"one write": 0, "layer by layer": 9}
"""Values of the setting ``stream_kv_rows``."""
SETTLE_S = 1.5
"""Longer than a report of the engine takes to reach the metrics."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one cluster took for all of its requests."""

    exposed_s: float
    num_bytes: float
    ttft_s: float
    steps: float


def counters(metrics_port: int) -> tuple[float, float, float]:
    """Return exposed seconds, bytes sent, and steps so far, whatever their path."""
    exposed = sent = steps = 0.0
    for line in httpx.get(f"http://127.0.0.1:{metrics_port}/metrics", timeout=10).text.splitlines():
        if line.startswith("kernelflume_kv_exposed_seconds_total"):
            exposed += float(line.rpartition(" ")[2])
        if line.startswith("kernelflume_kv_bytes_sent_total"):
            sent += float(line.rpartition(" ")[2])
        if line.startswith("kernelflume_step_seconds_count"):
            steps += float(line.rpartition(" ")[2])
    return exposed, sent, steps


def run(options: argparse.Namespace, rows: int, stream_kv_rows: int) -> Figures:
    """Measure one way on a cluster of its own."""
    port, metrics_port = free_port(), free_port()
    environment = {
        "KERNELFLUME_WNODE_METRICS_PORT": str(metrics_port),
        "KERNELFLUME_WNODE_STREAM_KV_ROWS": str(stream_kv_rows),
        "KERNELFLUME_WNODE_MAX_NUM_BATCHED_TOKENS": str(rows),
    }
    draw = random.Random(rows)
    with tempfile.TemporaryDirectory() as logs:
        command = [*COMMAND, "serve", "smollm2", "--port", str(port)]
        command += ["--scaler-port", "0", "--log-dir", logs, "--attention-nodes", str(options.nodes)]
        command += ["--transport-error-handling", "none"]
        with server(command, port, "/ready", **environment) as url, httpx.Client(timeout=600) as client:
            took = []
            before = counters(metrics_port)
            for number in range(-1, options.requests):
                if number == 0:  # the one before was to warm
                    time.sleep(SETTLE_S)
                    before = counters(metrics_port)
                prompt = draw.choices(range(1000, 40000), k=options.prompt)
                body = {"model": "smollm2", "prompt": prompt, "max_tokens": 1, "temperature": 0}
                started = time.perf_counter()
                client.post(f"{url}/v1/completions", json=body).raise_for_status()
                took.append(time.perf_counter() - started)
            time.sleep(SETTLE_S)
            after = counters(metrics_port)
    exposed, sent, steps = (end - start for start, end in zip(before, after, strict=True))
    return Figures(exposed, sent, statistics.median(took[1:]), steps)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompt", type=int, default=2048, help="tokens of a prompt")
    parser.add_argument("--requests", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=2, help="attention nodes")
    parser.add_argument("--step-rows", default="256,1024", help="values of max_num_batched_tokens")
    options = parser.parse_args()
    os.environ.setdefault("KERNELFLUME_LOG_LEVEL", "warning")
    print("| rows a step | keys and values | MB sent | steps | exposed ms a step | TTFT s |")
    print("|---|---|---|---|---|---|")
    for rows in map(int, options.step_rows.split(",")):
        found: dict[str, list[Figures]] = {way: [] for way in WAYS}
        for _, (way, stream_kv_rows) in itertools.product(range(options.rounds), WAYS.items()):
            found[way].append(run(options, rows, stream_kv_rows))
        for way, figures in found.items():
            exposed_ms = statistics.median(1e3 * one.exposed_s / one.steps for one in figures)
            ttft_s = statistics.median(one.ttft_s for one in figures)
            sent = statistics.median(one.num_bytes for one in figures) / 1e6
            steps = statistics.median(one.steps for one in figures)
            cells = (rows, way, f"{sent:.1f}", f"{steps:.0f}", f"{exposed_ms:.2f}", f"{ttft_s:.2f}")
            print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
