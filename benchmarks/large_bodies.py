"""What many large bodies at once do to the router: its memory, who is served, and who beside them must wait.

A router of its own in front of the stub engine gets bodies of many clients at the same time, while a process
beside them asks for its health, and for small chat completions, one after another. With ``--keys`` the
clients are one key's, and another key sends a large body every second: how long it waits is shown too.

    python -m benchmarks.large_bodies
    python -m benchmarks.large_bodies --keys --kinds ids padded
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import secrets
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import httpx
from benchmarks.router import started

from kernelflume.core.apikeys import dump_keys, new_key
from kernelflume.router.json_parts import MAX_JSON_PARTS
from kernelflume.runtime.service import free_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    import psutil

    from kernelflume.core.apikeys import ApiKey

WORDS = "The quick brown fox jumps over a lazy dog, and nobody knows why. "
SMALL = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
MIB = 1 << 20
_PAUSE_S = 0.02


def _chat(text: str, **more: Any) -> bytes:
    return json.dumps({**SMALL, **more, "messages": [{"role": "user", "content": text}]}).encode()


def _tree(num_leaves: int) -> bytes:
    return _chat("Hi", chat_template_kwargs={"x": [{"a": {"b": []}}] * num_leaves})


KINDS: dict[str, Callable[[int], bytes]] = {
    "text": lambda size: _chat(WORDS * (size // len(WORDS))),
    "spaces": lambda size: _chat(" " * size),
    "ids": lambda size: json.dumps({"prompt": [12345] * (size // 7), "max_tokens": 1}).encode(),
    "tree": lambda size: _tree(size // 20),
    "parts": lambda size: _tree(MAX_JSON_PARTS // 5 - 10).ljust(size),
    "padded": lambda size: json.dumps(SMALL).encode().ljust(size),
}
"""Bodies of about so many bytes: what fills them. ``padded`` is a small request, ``parts`` as many objects as
are read; both are served."""


@dataclass
class Answers:
    """What clients were told, and after how many seconds."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    def shown(self) -> str:
        """Return the number of answers of each status."""
        return ", ".join(f"{number} x {status or 'none'}" for status, number in sorted(self.statuses.items()))


def _new_key(name: str) -> tuple[str, ApiKey]:
    return new_key(
        name, key_id=secrets.token_hex(6), secret=secrets.token_urlsafe(32), created_at=int(time.time())
    )


def memory_mib(process: psutil.Process, name: str) -> float:
    """Return what the kernel says of a process: ``VmRSS``, or ``VmHWM``, which is the most it ever was."""
    lines = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines()
    [line] = [line for line in lines if line.startswith(f"{name}:")]
    return int(line.split()[1]) / 1024


def probe(url: str, headers: dict[str, str], control: Connection) -> None:
    """Ask for health and for small completions until told to stop; send the seconds that each took."""
    health: list[float] = []
    small: list[float] = []
    with httpx.Client(base_url=url, headers=headers, timeout=120, trust_env=False) as client:
        client.post("/v1/chat/completions", json=SMALL).raise_for_status()
        control.send("ready")
        while not control.poll(_PAUSE_S):
            began = time.monotonic()
            client.get("/health").raise_for_status()
            between = time.monotonic()
            client.post("/v1/chat/completions", json=SMALL).raise_for_status()
            health.append(between - began)
            small.append(time.monotonic() - between)
    control.send((health, small))


async def send(url: str, path: str, body: bytes, headers: dict[str, str], answers: Answers) -> None:
    """Send one body; 0 stands for a connection that ended without an answer."""
    began = time.monotonic()
    try:
        async with httpx.AsyncClient(base_url=url, timeout=300, trust_env=False) as client:
            status = (
                await client.post(path, content=body, headers={"content-type": "application/json", **headers})
            ).status_code
    except httpx.HTTPError:
        status = 0
    answers.statuses[status] += 1
    answers.seconds.append(time.monotonic() - began)


async def flood(
    url: str,
    path: str,
    body: bytes,
    *,
    num_clients: int,
    headers: dict[str, str],
    other: dict[str, str] | None,
) -> tuple[Answers, Answers]:
    """Have all clients send the body at once, and another key one after another meanwhile."""
    many, few = Answers(), Answers()

    async def others() -> None:
        while other is not None:
            await send(url, path, body, other, few)
            await asyncio.sleep(1.0)

    beside = asyncio.create_task(others())
    await asyncio.gather(*(send(url, path, body, headers, many) for _ in range(num_clients)))
    beside.cancel()
    await asyncio.gather(beside, return_exceptions=True)
    return many, few


def row(options: argparse.Namespace, kind: str, folder: Path) -> str:
    """Measure one kind of bodies on a router of its own; return a row of the table."""
    body = KINDS[kind](int(options.size * MIB))
    path = "/v1/completions" if kind == "ids" else "/v1/chat/completions"
    grpc_port, http_port, port = (free_port() for _ in range(3))
    stub = [sys.executable, "-m", "benchmarks.router_stub", "--model", options.model]
    stub += ["--grpc-port", str(grpc_port), "--http-port", str(http_port)]
    stub += ["--max-model-len", str(options.max_model_len)]
    router = [sys.executable, "-m", "kernelflume.router", "--model", options.model, "--port", str(port)]
    router += ["--weight-nodes", f"127.0.0.1:{grpc_port}", "--log-level", "error", "--no-ui"]
    router += [f"--{flag}" for flag in options.router_flags]
    headers, other = {}, None
    if options.keys:
        made = [_new_key(name) for name in ("many", "few")]
        keys_file = folder / "keys.json"
        keys_file.write_text(dump_keys(key for _, key in made), encoding="utf-8")
        keys_file.chmod(0o600)
        headers, other = ({"authorization": f"Bearer {secret}"} for secret, _ in made)
        router += ["--auth.keys-file", str(keys_file)]
    url = f"http://127.0.0.1:{port}"
    spawn = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        stack.enter_context(started(stub, http_port, path="/v1/models", log=folder / "stub.log"))
        process = stack.enter_context(started(router, port, path="/ready", log=folder / "router.log"))
        ours, theirs = spawn.Pipe()
        prober = spawn.Process(target=probe, args=(url, other or headers, theirs), daemon=True)
        prober.start()
        stack.callback(prober.kill)
        ours.recv()
        before = memory_mib(process, "VmRSS")
        began = time.monotonic()
        many, few = asyncio.run(
            flood(url, path, body, num_clients=options.clients, headers=headers, other=other)
        )
        seconds = time.monotonic() - began
        ours.send("stop")
        health, small = ours.recv()
        prober.join(10)
        peak, after = memory_mib(process, "VmHWM"), memory_mib(process, "VmRSS")
    beside = f"{few.shown()}; {median(few.seconds):.1f}, {max(few.seconds):.1f}" if few.seconds else "-"
    return (
        f"| {kind} | {seconds:.0f} | {many.shown()} | {beside} | {before:.0f} | {peak:.0f} | {after:.0f} "
        f"| {_p50_and_most(health)} | {_p50_and_most(small)} |"
    )


def _p50_and_most(seconds: list[float]) -> str:
    return f"{1e3 * median(seconds):.0f}, {1e3 * max(seconds):.0f}"


def main() -> None:
    """Measure every kind, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--size", type=float, default=15.0, help="of a body, in MiB")
    parser.add_argument(
        "--max-model-len", type=int, default=8192, help="context length that the engine tells"
    )
    parser.add_argument(
        "--kinds", nargs="*", choices=KINDS, default=["text", "ids", "tree", "parts", "padded"]
    )
    parser.add_argument("--keys", action="store_true", help="clients have one key, and another key is beside")
    parser.add_argument("--router-flags", nargs="*", default=[], help="more flags of the router, without --")
    options = parser.parse_args()
    print(f"{options.clients} clients, {options.size:g} MiB each, context {options.max_model_len}\n")
    print(
        "| body | seconds | answers | another key's; p50, most s | MiB before | at most | after "
        "| /health p50, most ms | small request p50, most ms |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for kind in options.kinds:
        with TemporaryDirectory() as folder:
            print(row(options, kind, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
