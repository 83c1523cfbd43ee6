"""What a scale event costs, by its parts (paper section 6.2, figure 10).

    python -m benchmarks.scale_events [--events 100] [--streams 4]

One stack serves the small model; streams decode all the time while attention nodes are added and removed in
turn. Shown are

- route install: the swap of the routing table inside the step loop, from the weight node's own histogram;
- route prepare: connecting to a node that serves, registered memory and first write included (prewarming);
- node from scratch: starting a process until it serves (launching), and both together;
- the same with a standby node;
- full instance: starting another weight node of the same model until it serves, for comparison.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import httpx
from benchmarks.decode import prompts, serve_command, server
from benchmarks.histogram import upper_bounds
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kernelflume.checkpoint.source import resolve
from kernelflume.rpc.v1 import scaler_pb2, scaler_pb2_grpc
from kernelflume.runtime.service import free_port
from kernelflume.store.embedded import embedded_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WAIT_S = 300.0


def phases(operation: scaler_pb2.Operation) -> dict[str, float]:
    """Return the seconds of each phase."""
    if operation.result != "succeeded":
        raise SystemExit(f"{operation.operation_id}: {operation.result} {operation.reason}")
    return {phase.phase: phase.seconds for phase in operation.history}


async def events(scaler: str, count: int) -> list[dict[str, float]]:
    """Add and remove a node in turn; return the phases of each operation."""
    found: list[dict[str, float]] = []
    async with grpc.aio.insecure_channel(scaler) as channel:
        stub = scaler_pb2_grpc.ScalerAdminStub(channel)
        for number in range(count):
            request = scaler_pb2.SetTargetRequest(
                operation_id=f"event-{os.getpid()}-{time.monotonic_ns()}", attention_nodes=2 - number % 2
            )
            operation = await stub.SetTarget(request, timeout=WAIT_S)
            watch = scaler_pb2.GetOperationRequest(operation_id=operation.operation_id)
            states = [state async for state in stub.WatchOperation(watch, timeout=WAIT_S)]
            found.append(phases(states[-1]))
    return found


async def stream_on(url: str, prompt: str) -> None:
    """Decode short completions one after the other, until cancelled."""
    body = {"model": "smollm2", "prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": True}
    async with httpx.AsyncClient(timeout=600) as client:
        while True:
            (await client.post(f"{url}/v1/completions", json=body)).raise_for_status()


async def measure(url: str, scaler: str, count: int, streams: int) -> list[dict[str, float]]:
    """Run events while streams decode."""
    load = [asyncio.create_task(stream_on(url, prompt)) for prompt in prompts(streams)]
    try:
        return await events(scaler, count)
    finally:
        for task in load:
            task.cancel()
        await asyncio.gather(*load, return_exceptions=True)


@contextlib.contextmanager
def stack(**environment: str) -> Iterator[tuple[str, str, int]]:
    """Serve the small model with one attention node; yield its URL, scaler and metrics port."""
    port, scaler_port, metrics_port = (free_port() for _ in range(3))
    with tempfile.TemporaryDirectory() as logs:
        command = serve_command(port, "--scaler-port", str(scaler_port))
        command += ["--log-dir", logs, "--attention-nodes", "1"]
        environment |= {"KERNELFLUME_WNODE_METRICS_PORT": str(metrics_port)}
        with server(command, port, "/ready", **environment) as url:
            yield url, f"127.0.0.1:{scaler_port}", metrics_port


@contextlib.contextmanager
def embedded_redis() -> Iterator[str]:
    """Run an embedded Redis; yield its URL."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(embedded_command(port, Path(folder)), stdout=subprocess.DEVNULL)
        try:
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.terminate()
            process.wait(30)


def full_instance_s(redis_url: str) -> float:
    """Return the seconds from the start of a weight node's process until it serves."""
    port = free_port()
    command = [sys.executable, "-m", "kernelflume.wnode", "--address", f"127.0.0.1:{port}"]
    command += ["--model", str(resolve("smollm2").path), "--redis-url", redis_url, "--cluster", "full"]
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            while time.monotonic() - started < WAIT_S:
                with contextlib.suppress(grpc.RpcError):
                    answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=1)
                    if answer.status == health_pb2.HealthCheckResponse.SERVING:
                        return time.monotonic() - started
                time.sleep(0.02)
        raise SystemExit("the weight node did not serve")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def row(name: str, seconds: Sequence[float]) -> str:
    """Return a line of the table."""
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return f"| {name} | {len(ordered)} | {statistics.median(ordered) * 1e3:.0f} ms | {p99 * 1e3:.0f} ms |"


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=100)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--scratch-only", action="store_true", help="neither standby nor full instance")
    options = parser.parse_args()
    with stack() as (url, scaler, metrics_port):
        found = asyncio.run(measure(url, scaler, options.events, options.streams))
        count, (p50, p99) = upper_bounds(metrics_port, "kernelflume_route_install_seconds", 0.5, 0.99)
    standby, full = ([], []) if options.scratch_only else _compared(options.events, options.streams)
    ups = [each for each in found if "launching" in each]
    quick = [each for each in standby if "launching" in each]
    print("| | events | p50 | p99 |\n|---|---|---|---|")
    print(
        f"| route install (step loop) | {count} | at most {p50 * 1e6:.0f} us | at most {p99 * 1e6:.0f} us |"
    )
    print(row("route prepare: connect and warm", [each["prewarming"] for each in ups]))
    print(row("node from scratch until it serves", [each["launching"] for each in ups]))
    print(row("node from scratch until routable", [_until_routable(each) for each in ups]))
    if full:
        print(row("standby node until routable", [_until_routable(each) for each in quick]))
        print(row("full instance until it serves", full))


def _compared(count: int, streams: int) -> tuple[list[dict[str, float]], list[float]]:
    """Return the events of a stack with a standby node, and the seconds of full instances."""
    with stack(KERNELFLUME_SCALER_STANDBY_ATTENTION_NODES="1") as (url, scaler, _):
        time.sleep(15)  # until a node stands by
        standby = []
        for _ in range(min(10, count // 2)):
            standby += asyncio.run(measure(url, scaler, 2, streams))
            time.sleep(8)
    with embedded_redis() as redis_url:
        return standby, [full_instance_s(redis_url) for _ in range(3)]


def _until_routable(operation: dict[str, float]) -> float:
    names = ("launching", "prewarming", "ready", "publishing")
    return sum(itertools.chain(operation.get(name, 0.0) for name in names))


if __name__ == "__main__":
    main()
