"""Up and down, time after time, with real processes: nothing may be left of it.

    python -m benchmarks.scale_soak [--cycles 200] [--streams 2] [--log-dir DIR]

A stack serves the small model from one attention node; another is added and removed in each cycle, while
streams decode. Before and after, with the streams at rest, all that could leak is counted. The exit code is 1
if something did.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import httpx
import psutil
from benchmarks.census import Census, settled, take
from benchmarks.decode import prompts, serve_command

from kernelflume.rpc.v1 import scaler_pb2, scaler_pb2_grpc
from kernelflume.runtime.service import free_port
from kernelflume.store.embedded import embedded_command

if TYPE_CHECKING:
    from collections.abc import Iterator

WARM_CYCLES = 5
"""Cycles before the first count: channels, threads and pages that are made once and kept."""
MEMORY_BYTES = 48 * 1024**2
"""How much a process may grow: allocators keep some of what was freed."""
SETTLE_S = 30.0
_WAIT_S = 120.0


async def scale(stub: scaler_pb2_grpc.ScalerAdminStub, name: str, target: int) -> None:
    """Change the number of nodes and wait for it.

    Raises:
        RuntimeError: it did not work out.
    """
    request = scaler_pb2.SetTargetRequest(operation_id=name, attention_nodes=target)
    await stub.SetTarget(request, timeout=_WAIT_S)
    watch = scaler_pb2.GetOperationRequest(operation_id=name)
    states = [state async for state in stub.WatchOperation(watch, timeout=_WAIT_S)]
    if states[-1].result != "succeeded":
        raise RuntimeError(f"{name}: {states[-1].result} {states[-1].reason}")


async def cycles(scaler: str, numbers: range, pause_s: float = 0.0) -> list[float]:
    """Go up to two nodes and back to one, once for each number; return the seconds of each."""
    seconds = []
    async with grpc.aio.insecure_channel(scaler) as channel:
        stub = scaler_pb2_grpc.ScalerAdminStub(channel)
        for number in numbers:
            started = time.monotonic()
            await scale(stub, f"up-{number}", 2)
            await asyncio.sleep(pause_s)
            await scale(stub, f"down-{number}", 1)
            seconds.append(time.monotonic() - started)
    return seconds


async def stream_on(url: str, prompt: str, tokens: list[int]) -> None:
    """Decode short completions one after the other, until cancelled; add the tokens of each to ``tokens``."""
    body = {"model": "smollm2", "prompt": prompt, "max_tokens": 32, "temperature": 0, "ignore_eos": True}
    async with httpx.AsyncClient(timeout=_WAIT_S) as client:
        while True:
            answer = (await client.post(f"{url}/v1/completions", json=body)).raise_for_status()
            tokens.append(answer.json()["usage"]["completion_tokens"])


async def under_load(url: str, scaler: str, numbers: range, streams: int) -> tuple[list[float], int]:
    """Run cycles while streams decode; return the seconds of each, and the tokens decoded meanwhile."""
    tokens: list[int] = []
    load = [asyncio.create_task(stream_on(url, prompt, tokens)) for prompt in prompts(streams)]
    try:
        seconds = await cycles(scaler, numbers)
        for task in load:
            if task.done():
                task.result()
        return seconds, sum(tokens)
    finally:
        for task in load:
            task.cancel()
        await asyncio.gather(*load, return_exceptions=True)


@contextlib.contextmanager
def served(log_dir: Path | None = None) -> Iterator[tuple[psutil.Process, str, str, str]]:
    """Serve the small model from one attention node; yield its process, URL, scaler and store."""
    redis_port, port, scaler_port = (free_port() for _ in range(3))
    redis_url = f"redis://127.0.0.1:{redis_port}/0"
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as cleanup:
        redis = subprocess.Popen(embedded_command(redis_port, Path(folder)), stdout=subprocess.DEVNULL)
        cleanup.callback(redis.wait, 30)
        cleanup.callback(redis.terminate)
        command = serve_command(port, "--scaler-port", str(scaler_port), "--redis-url", redis_url)
        command += ["--log-dir", str(log_dir or folder)]
        command += ["--attention-nodes", "1", "--attention-node-memory", "256MiB"]
        stack = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        cleanup.callback(stack.wait, 60)
        cleanup.callback(stack.terminate)
        assert stack.stdout is not None
        if not stack.stdout.readline().startswith("ready:"):
            raise SystemExit("the stack did not start")
        yield psutil.Process(stack.pid), f"http://127.0.0.1:{port}", f"127.0.0.1:{scaler_port}", redis_url


def report(before: Census, after: Census) -> None:
    """Print a Markdown table of what the processes hold."""
    print("| process | descriptors | threads | shared mappings | resident, MiB |\n|---|---|---|---|---|")
    for pid, old in before.processes.items():
        new = after.processes.get(pid)
        if new is None:
            continue
        print(
            f"| {old.role} | {old.num_descriptors} -> {new.num_descriptors} "
            f"| {old.num_threads} -> {new.num_threads} | {old.num_shared} -> {new.num_shared} "
            f"| {old.rss_bytes >> 20} -> {new.rss_bytes >> 20} |"
        )
    print(f"\nKeys of the store: {sum(before.keys.values())} entries -> {sum(after.keys.values())}.")


def main() -> None:
    """Run the cycles and print what is left of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--streams", type=int, default=2)
    parser.add_argument("--log-dir", type=Path, help="keep the logs there")
    options = parser.parse_args()
    with served(options.log_dir) as (root, url, scaler, redis_url):
        asyncio.run(under_load(url, scaler, range(WARM_CYCLES), options.streams))
        time.sleep(2)  # until what ends by itself has ended
        before = take(root, redis_url)
        numbers = range(WARM_CYCLES, WARM_CYCLES + options.cycles)
        seconds, tokens = asyncio.run(under_load(url, scaler, numbers, options.streams))
        after, found = settled(before, root, redis_url, memory_bytes=MEMORY_BYTES, patience_s=SETTLE_S)
        report(before, after)
    print(
        f"\n{len(seconds)} cycles, {statistics.median(seconds):.2f} s each (median), {sum(seconds):.0f} s "
        f"in all; {tokens} tokens decoded meanwhile."
    )
    print("\n".join(found) if found else "Nothing is left.")
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
