"""What the router costs: time added to a request and to a token, and tokens a second on one core.

Beside it a bare engine, asked directly, and, where its program is given, the gateway vllm-router in front of
the same engine over HTTP. Systems are measured in turn, medians over rounds are shown. Tokens a core are
counted by a gateway's own CPU time, which other users of a machine change little; of times the tenth
percentile is the one that they change least.

    python -m benchmarks.router --vllm-router PATH/bin/vllm-router

No request's last message was seen before: all of a "new" conversation of one message, and the last turn of
another one, must be tokenized.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import httpx
import psutil

from kernelflume.core.sampling import SamplingParameters
from kernelflume.rpc.channel import Channels
from kernelflume.rpc.codec import sampling_to_proto
from kernelflume.rpc.v1 import wnode_pb2, wnode_pb2_grpc
from kernelflume.runtime.service import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SENTENCE = "Write a story about a lighthouse keeper who finds a letter. "
TURNS = [
    {"role": "user", "content": SENTENCE * 2},
    {"role": "assistant", "content": "A keeper found a letter, and it was for nobody."},
]
START_TIMEOUT_S = 120.0


@dataclass
class Heard:
    """When frames of one stream came, by the monotonic clock."""

    asked_at: float = 0.0
    arrivals: list[float] = field(default_factory=list)


@dataclass
class Gateway:
    """A server that is asked over HTTP; ``process`` is None for the engine itself."""

    name: str
    port: int
    process: psutil.Process | None = None

    def cpu_seconds(self) -> float:
        """CPU time of the process and its children so far."""
        if self.process is None:
            return 0.0
        times = [one.cpu_times() for one in (self.process, *self.process.children(recursive=True))]
        return float(sum(one.user + one.system for one in times))


def new_conversation(number: int) -> list[dict[str, str]]:
    """Return messages that were not sent before, some 105 tokens with those of the chat template."""
    return [{"role": "user", "content": f"{number:04}: {SENTENCE * 6}"}]


def next_turn(number: int) -> list[dict[str, str]]:
    """Return as much text, of which all but the last message was sent before."""
    return [*TURNS, {"role": "user", "content": f"{number:04}: {SENTENCE * 2}"}]


def request_bytes(max_tokens: int, messages: list[dict[str, str]]) -> bytes:
    """Return a streaming chat request."""
    body = json.dumps(
        {
            "model": "smollm2",
            "messages": messages,
            "max_tokens": max_tokens,
            "stream": True,
            "ignore_eos": True,
        }
    ).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection:
    """A client that does as little as it can for a frame: it counts them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        """Connect to a port of this machine."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, request: bytes) -> Heard:
        """Send a request and read its stream to the end."""
        heard = Heard(time.monotonic())
        self._writer.write(request)
        rest = b""
        while b"[DONE]" not in rest:
            data = await self._reader.read(65536)
            if not data:
                raise ConnectionError(f"closed early: {rest[:300]!r}")
            now = time.monotonic()
            rest = rest[-6:] + data
            # A chunk that says who speaks, or ends the stream, is no token.
            heard.arrivals += [now] * data.count(b'"content":"')
        if not rest.endswith(b"0\r\n\r\n"):
            await self._reader.readuntil(b"0\r\n\r\n")
        return heard

    def close(self) -> None:
        """Close it."""
        self._writer.close()


@contextmanager
def started(
    command: list[str], port: int, *, path: str, log: Path, core: int | None = None, python_path: str = ""
) -> Iterator[psutil.Process]:
    """Run a server until the block ends, on one core if it is said which; wait until it answers."""
    env = os.environ | {"NO_PROXY": "*"} | ({"PYTHONPATH": python_path} if python_path else {})
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=env)
    if core is not None:
        # Before it has threads, which inherit it.
        psutil.Process(process.pid).cpu_affinity([core])
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} did not start: {log.read_text()[-2000:]}")
            try:
                if httpx.get(f"http://127.0.0.1:{port}{path}", timeout=2).status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def source_path(copy: Path) -> str:
    """Return the import path of a working copy."""
    folders = [copy / "libs", *sorted((copy / "services").iterdir()), copy]
    return os.pathsep.join(str(folder.resolve()) for folder in folders)


async def direct(port: int, prompt: list[int], max_tokens: int) -> Heard:
    """Ask the engine by gRPC, as the router does."""
    async with Channels().open(f"127.0.0.1:{port}") as channel:
        stub = wnode_pb2_grpc.WeightNodeStub(channel)
        await stub.GetLoad(wnode_pb2.GetLoadRequest())
        request = wnode_pb2.GenerateRequest(
            request_id=f"direct-{time.monotonic_ns()}",
            prompt_token_ids=prompt,
            sampling=sampling_to_proto(SamplingParameters(max_tokens=max_tokens)),
        )
        heard = Heard(time.monotonic())
        async for event in stub.Generate(request):
            heard.arrivals += [time.monotonic()] * len(event.token_ids)
        return heard


async def set_period(port: int, period_s: float) -> None:
    """Set the time between two of the engine's steps."""
    async with httpx.AsyncClient() as client:
        await client.get(f"http://127.0.0.1:{port}/period/{period_s}")


async def latencies(ask: dict[str, Callable[[int], Any]], rounds: int) -> dict[str, dict[str, float]]:
    """Ask each system in turn, alone; return milliseconds to the first token, and of a stream's length."""
    first: dict[str, list[float]] = defaultdict(list)
    whole: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds + 5):
        # In another order each time, for whoever comes after its like finds more in the processor's caches.
        order = list(ask.items())
        random.Random(number).shuffle(order)
        for name, one in order:
            heard = await one(number)
            if number >= 5:
                first[name].append(1e3 * (heard.arrivals[0] - heard.asked_at))
                whole[name].append(1e3 * (heard.arrivals[-1] - heard.arrivals[0]))
    return {
        name: {
            "p10": sorted(first[name])[int(0.1 * rounds)],
            "p50": median(first[name]),
            "p90": sorted(first[name])[int(0.9 * rounds)],
            "stream": median(whole[name]),
        }
        for name in ask
    }


async def load(gateway: Gateway, *, num_streams: int, rate: float, seconds: float) -> dict[str, float]:
    """Hold streams open for some seconds; return what came, and what it cost."""
    max_tokens = int(rate * (seconds + 3)) + 2
    connections = [await Connection.open(gateway.port) for _ in range(num_streams)]
    heards: list[Heard] = []

    async def one(connection: Connection) -> None:
        heards.append(await connection.ask(request))

    request = request_bytes(max_tokens, new_conversation(0))
    cpu_before, began = gateway.cpu_seconds(), time.monotonic()
    await asyncio.gather(*(one(connection) for connection in connections))
    elapsed, cpu = time.monotonic() - began, gateway.cpu_seconds() - cpu_before
    for connection in connections:
        connection.close()
    # Tokens by the engine's count: frames may carry more than one where a gateway is behind.
    num_tokens = num_streams * max_tokens
    num_frames = sum(len(heard.arrivals) for heard in heards)
    gaps = sorted(
        later - earlier
        for heard in heards
        for earlier, later in zip(heard.arrivals, heard.arrivals[1:], strict=False)
    )
    return {
        "tokens_per_s": num_tokens / elapsed,
        "tokens_per_core_s": num_tokens / cpu if cpu else float("inf"),
        "us_per_token": 1e6 * cpu / num_tokens,
        "cpu": cpu / elapsed,
        "frames_share": num_frames / num_tokens,
        "gap_p99_ms": 1e3 * gaps[int(0.99 * len(gaps))],
        "offered_share": (num_tokens / elapsed) / (num_streams * rate),
    }


async def measure(
    options: argparse.Namespace, gateways: list[Gateway], engine: Gateway, grpc_port: int
) -> None:
    """Print a table of requests one at a time, and one of streams at once."""
    from transformers import AutoTokenizer

    from kernelflume.checkpoint.source import resolve

    tokenizer = AutoTokenizer.from_pretrained(resolve(options.model).path)
    prompts: list[list[int]] = []
    for messages in (new_conversation(0), next_turn(0)):
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompts.append(list(tokenizer(text, add_special_tokens=False)["input_ids"]))
    print(f"prompts: {', '.join(str(len(one)) for one in prompts)} tokens; load {os.getloadavg()[0]:.1f}")

    await set_period(engine.port, 0.005)
    connections = {one.name: await Connection.open(one.port) for one in (engine, *gateways)}

    async def asked(
        connection: Connection, make: Callable[[int], list[dict[str, str]]], number: int
    ) -> Heard:
        return await connection.ask(request_bytes(20, make(number)))

    ask: dict[str, Callable[[int], Any]] = {"engine, gRPC": lambda _: direct(grpc_port, prompts[0], 20)}
    for name, connection in connections.items():
        ask[name] = partial(asked, connection, new_conversation)
        if name.startswith("kernelflume"):
            ask[f"{name}, next turn"] = partial(asked, connection, next_turn)
    found = await latencies(ask, options.requests)
    print(
        "\n| one request at a time | first token p10 ms | p50 | p90 | added p10 ms | added p50 ms "
        "| 19 tokens, 5 ms apart, ms |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, one in found.items():
        base = found["engine, gRPC" if name.startswith("kernelflume") else engine.name]
        times = " | ".join(f"{one[key]:.2f}" for key in ("p10", "p50", "p90"))
        added = " | ".join(f"{one[key] - base[key]:.2f}" for key in ("p10", "p50"))
        print(f"| {name} | {times} | {added} | {one['stream']:.1f} |")
    for connection in connections.values():
        connection.close()

    print(
        "\n| streams x tokens/s each | gateway | tokens/s | of the offered | CPU | us a token "
        "| tokens/s a core | frames a token | p99 gap ms |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for num_streams, rate in options.loads:
        await set_period(engine.port, 1 / rate)
        rounds: dict[str, list[dict[str, float]]] = defaultdict(list)
        for _ in range(options.rounds):
            for gateway in gateways:
                rounds[gateway.name].append(
                    await load(gateway, num_streams=num_streams, rate=rate, seconds=options.seconds)
                )
        for name, measured in rounds.items():
            of = {key: median(one[key] for one in measured) for key in measured[0]}
            print(
                f"| {num_streams} x {rate:g} | {name} | {of['tokens_per_s']:.0f} | {of['offered_share']:.2f} "
                f"| {of['cpu']:.2f} | {of['us_per_token']:.0f} | {of['tokens_per_core_s']:.0f} "
                f"| {of['frames_share']:.2f} | {of['gap_p99_ms']:.0f} |"
            )


def _load(text: str) -> tuple[int, float]:
    streams, _, rate = text.partition("x")
    return int(streams), float(rate)


def main() -> None:
    """Start everything, measure, print tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--vllm-router", type=Path, help="program of the gateway to measure beside")
    parser.add_argument("--before", type=Path, help="another working copy, whose router is measured beside")
    parser.add_argument("--requests", type=int, default=200, help="requests a system, one at a time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a stream under load")
    parser.add_argument("--loads", type=_load, nargs="*", default=[(32, 20.0), (128, 20.0), (256, 20.0)])
    parser.add_argument("--logs", type=Path, default=Path("logs"))
    parser.add_argument("--router-flags", nargs="*", default=[], help="more flags of the router, without --")
    parser.add_argument(
        "--pin", action="store_true", help="gateways on the second core, engine and client on the first"
    )
    options = parser.parse_args()
    near, far = (0, 1) if options.pin else (None, None)
    if near is not None:
        psutil.Process().cpu_affinity([near])
    options.logs.mkdir(exist_ok=True)
    grpc_port, http_port, port, before_port, other_port, metrics_port = (free_port() for _ in range(6))
    stub = [sys.executable, "-m", "benchmarks.router_stub", "--model", options.model]
    stub += ["--grpc-port", str(grpc_port), "--http-port", str(http_port)]
    router = [sys.executable, "-m", "kernelflume.router", "--model", options.model]
    router += ["--weight-nodes", f"127.0.0.1:{grpc_port}", "--max-concurrent-requests", "4096"]
    router += ["--log-level", "warning", *(f"--{flag}" for flag in options.router_flags)]
    engine = Gateway("engine, HTTP", http_port)
    with ExitStack() as stack:

        def start(command: list[str], at: int, path: str, log: str, **where: Any) -> psutil.Process:
            return stack.enter_context(started(command, at, path=path, log=options.logs / log, **where))

        start(stub, http_port, "/v1/models", "stub.log", core=near)
        ours = start([*router, "--port", str(port)], port, "/ready", "router.log", core=far)
        gateways = [Gateway("kernelflume", port, ours)]
        if options.before is not None:
            command, path = [*router, "--port", str(before_port)], source_path(options.before)
            theirs = start(command, before_port, "/ready", "before.log", core=far, python_path=path)
            gateways.append(Gateway("kernelflume before", before_port, theirs))
        if options.vllm_router is None:
            asyncio.run(measure(options, gateways, engine, grpc_port))
            return
        other = [str(options.vllm_router), "--host", "127.0.0.1", "--port", str(other_port)]
        other += ["--worker-urls", f"http://127.0.0.1:{http_port}", "--policy", "round_robin"]
        other += ["--prometheus-port", str(metrics_port), "--log-level", "warning"]
        process = start(other, other_port, "/health", "vllm-router.log", core=far)
        gateways.append(Gateway("vllm-router", other_port, process))
        asyncio.run(measure(options, gateways, engine, grpc_port))


if __name__ == "__main__":
    main()
