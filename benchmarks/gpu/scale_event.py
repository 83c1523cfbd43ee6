"""Time per output token while attention nodes are added and drained, at the geometry of a real model.

    python -m benchmarks.gpu.scale_event --out scale-event.json
    python -m benchmarks.gpu.scale_event --geometry tiny --device cpu --context 300 --tokens 200   (a trial)

One stack serves a model of random weights; for each of ``--runs`` all streams prefill prompts and decode:

- idle: one attention node, no event; its windows lie where those of ``up`` do, as a control;
- up:   1 -> 2 nodes by the admin API, once every stream has a share of its tokens;
- down: 2 -> 1 nodes likewise (after ``up``);
- grow: contexts outgrow one node's memory, and the policy adds the second one by itself.

A run is cut into three windows: before the event; during it, from the request (the policy's decision) until
the weight node has adopted the table that makes the nodes routable, and ``--settle`` seconds more; and after.
With contexts of 16384 two nodes of one 141 GB GPU hold 24 streams (``--streams 24``), not 32.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import torch
from benchmarks.decode import COMMAND, server
from benchmarks.gpu.event_watch import EventWatch, change_target, set_policy
from benchmarks.gpu.model_folder import GEOMETRIES, write_model_folder
from benchmarks.gpu.mps import mps
from benchmarks.gpu.token_streams import MODEL, TokenStreams, stream_all
from benchmarks.histogram import upper_bounds

from kernelflume.rpc.v1 import scaler_pb2_grpc
from kernelflume.runtime.service import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE_TOKENS = 64
RUN_S = 400.0
FIGURES = {
    "captures": "kernelflume_graph_captures",
    "graph_steps": "kernelflume_graph_steps_total",
    "restarts": "vllm:num_preemptions_total",
    "tails_moved": "kernelflume_tails_moved_total",
    "steps": "kernelflume_step_seconds_count",
    "step_seconds": "kernelflume_step_seconds_sum",
    "exposed_wait_seconds": "kernelflume_exposed_wait_seconds_total",
}
WINDOWS = ("before", "during", "after")


class Bench:
    """A served stack and what is asked of it."""

    def __init__(self, options: argparse.Namespace, ports: tuple[int, int, int]) -> None:
        self.options = options
        self.port, self.scaler_port, self.metrics_port = ports
        self._random = random.Random(5)

    def prompts(self, count: int, length: int) -> list[list[int]]:
        """Return prompts of random tokens."""
        vocabulary = GEOMETRIES[self.options.geometry]["vocab_size"]
        return [[self._random.randrange(vocabulary) for _ in range(length)] for _ in range(count)]

    def figures(self) -> dict[str, float]:
        """Read the weight node's counters, which follow its steps within a second."""
        text = httpx.get(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10).text
        found = {}
        for key, name in FIGURES.items():
            match = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
            found[key] = float(match[1]) if match else 0.0
        return found

    async def measure(self, run: str) -> dict[str, Any]:
        """Do one run."""
        options = self.options
        tokens = int(options.tokens * (options.grow if run == "grow" else 1))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.scaler_port}") as channel:
            admin = scaler_pb2_grpc.ScalerAdminStub(channel)
            await change_target(admin, 2 if run == "down" else 1)
            if run == "grow":
                await set_policy(admin, self.policy())
            await asyncio.sleep(1.0)
            before = self.figures()
            streams = TokenStreams()
            began = time.perf_counter()
            async with EventWatch(admin) as watch:
                decoding = asyncio.create_task(
                    stream_all(
                        self.port,
                        self.prompts(options.streams, options.context),
                        tokens,
                        streams,
                        timeout_s=RUN_S,
                    )
                )
                await self.cause(run, admin, watch, streams, decoding)
                await decoding
                await asyncio.sleep(1.5)  # reports come, and a drain ends once its sequences have
        first, last = streams.all_decode
        return {
            "run": run,
            "prefill_s": first - began,
            "decode_s": last - first,
            "of_one_node": (options.context + tokens) / node_tokens(options),
            "tokens_an_event": tokens * options.streams / sum(map(len, streams.arrivals)),
            "event": watch.to_dict(),
            "windows": windows(streams, watch.began, watch.ended, settle_s=options.settle),
            "figures": {key: [before[key], value] for key, value in self.figures().items()},
        }

    async def cause(
        self,
        run: str,
        admin: scaler_pb2_grpc.ScalerAdminStub,
        watch: EventWatch,
        streams: TokenStreams,
        decoding: asyncio.Task[None],
    ) -> None:
        """Bring the event about once every stream is so far, except where the policy does."""
        if run == "grow":
            return
        wanted = self.options.tokens * self.options.at
        while streams.fewest < wanted and not decoding.done():  # noqa: ASYNC110 - filled by other tasks
            await asyncio.sleep(0.02)
        watch.requested(time.perf_counter())
        if run == "idle":
            await asyncio.sleep(self.options.idle_event)
            watch.installed(time.perf_counter())
            return
        await change_target(admin, 1 if run == "down" else 2, waits=False)

    def policy(self) -> str:
        """Return a policy that publishes the second node before the first one is full."""
        options = self.options
        gamma = (options.context + 0.5 * options.tokens) / node_tokens(options)
        return f"maximum_nodes: 2\nbeta_memory: 1.0\ngamma: {gamma:.3f}\nscale_down_cooldown_s: 600\n"


def node_tokens(options: argparse.Namespace) -> int:
    """Return how many tokens of each stream one attention node can hold."""
    return int(options.context + options.fill * options.tokens) + PAGE_TOKENS


def windows(
    streams: TokenStreams, began: float | None, ended: float | None, *, settle_s: float
) -> dict[str, dict[str, float]]:
    """Return the figures of each window around an event, as far as all streams decoded in it."""
    first, last = streams.all_decode
    begin = min(began or last, last)
    end = min((ended or last) + settle_s, last)
    spans = {
        "all": (first, last),
        "before": (first, begin),
        "during": (begin, end),
        "after": (end, last),
    }
    found = {}
    for name, (start, stop) in spans.items():
        gaps = sorted(streams.gaps(start, stop))
        if stop - start < 0.05 or not gaps:
            continue
        found[name] = {
            "seconds": stop - start,
            "gaps": float(len(gaps)),
            "p50_ms": gaps[len(gaps) // 2] * 1e3,
            "p99_ms": gaps[int(len(gaps) * 0.99)] * 1e3,
            "longest_ms": gaps[-1] * 1e3,
            "tokens_s": streams.tokens(start, stop) / (stop - start),
        }
    return found


@contextlib.contextmanager
def served(options: argparse.Namespace) -> Iterator[Bench]:
    """Serve the model with one attention node."""
    ports = (free_port(), free_port(), free_port())
    with contextlib.ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
        checkpoint = write_model_folder(folder / "model", options.geometry, layers=options.layers)
        dtype = checkpoint.config.concrete_dtype(options.dtype, options.device)
        geometry = checkpoint.geometry(dtype, dtype)
        memory = options.streams * node_tokens(options) * geometry.token_bytes
        environment = {
            "KERNELFLUME_WNODE_METRICS_PORT": str(ports[2]),
            "KERNELFLUME_WNODE_MAX_NUM_SEQS": str(options.streams),
            "KERNELFLUME_WNODE_MAX_NUM_BATCHED_TOKENS": str(options.batched_tokens),
            "KERNELFLUME_WNODE_DATA_PATH": options.data_path,
            "KERNELFLUME_ANODE_PAGE_TOKENS": str(PAGE_TOKENS),
        }
        if options.async_scheduling is not None:
            environment["KERNELFLUME_WNODE_ASYNC_SCHEDULING"] = str(options.async_scheduling).lower()
        is_gpu = options.device != "cpu"
        if is_gpu:
            environment |= held.enter_context(mps()) if options.mps else {}
        devices = options.attention_devices or (f"cuda:{torch.cuda.device_count() - 1}" if is_gpu else "cpu")
        longest = options.context + int(options.tokens * options.grow) + PAGE_TOKENS
        command = [*COMMAND, "serve", str(folder / "model"), "--load-format", "dummy"]
        command += ["--no-enable-prefix-caching"]
        command += ["--dtype", options.dtype, "--device", options.device, "--attention-devices", devices]
        command += ["--port", str(ports[0]), "--scaler-port", str(ports[1]), "--served-model-name", MODEL]
        command += ["--attention-nodes", "1", "--attention-node-memory", str(memory)]
        command += ["--max-model-len", str(longest), "--log-dir", str(options.log_dir or folder / "logs")]
        print(
            f"{options.geometry}: {memory / 2**30:.1f} GiB a node, {geometry.token_bytes} bytes a token, "
            f"weight node on {options.device}, attention nodes on {devices}",
            file=sys.stderr,
            flush=True,
        )
        held.enter_context(server(command, ports[0], "/ready", **environment))
        yield Bench(options, ports)


def table(results: list[dict[str, Any]]) -> str:
    """Return the runs as a Markdown table."""
    lines = [
        "| run | window | s | TPOT p50, ms | p99, ms | longest gap, ms | tokens/s |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        lines += [
            f"| {result['run']} | {name} | {cell['seconds']:.1f} | {cell['p50_ms']:.2f} | "
            f"{cell['p99_ms']:.2f} | {cell['longest_ms']:.1f} | {cell['tokens_s']:.0f} |"
            for name in WINDOWS
            if (cell := result["windows"].get(name))
        ]
    return "\n".join(lines)


def main() -> None:
    """Run, and print tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--geometry", choices=tuple(GEOMETRIES), default="llama-8b")
    parser.add_argument("--layers", type=int, help="layers in place of the geometry's")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--attention-devices", default="", help="by default the last GPU")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--data-path", default="auto")
    parser.add_argument(
        "--async-scheduling",
        action=argparse.BooleanOptionalAction,
        help="launch steps before the one ahead is settled; by default as the environment says",
    )
    parser.add_argument("--mps", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--context", type=int, default=4096, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=1500, help="tokens decoded by each stream")
    parser.add_argument("--batched-tokens", type=int, default=2048, help="most rows of a step")
    parser.add_argument("--runs", default="idle,up,grow", help="of idle, up, down and grow, in this order")
    parser.add_argument("--at", type=float, default=0.2, help="share of the tokens before the event")
    parser.add_argument("--idle-event", type=float, default=2.0, help="seconds of the window of idle")
    parser.add_argument("--settle", type=float, default=1.0, help="seconds that still count as during")
    parser.add_argument(
        "--fill", type=float, default=1.05, help="a node holds every prompt and this share of --tokens"
    )
    parser.add_argument("--grow", type=float, default=1.6, help="grow decodes so many times --tokens")
    parser.add_argument("--log-dir", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    started = time.perf_counter()
    with served(options) as bench:
        start_s = time.perf_counter() - started
        print(f"ready after {start_s:.0f} s", file=sys.stderr, flush=True)
        warm = TokenStreams()
        asyncio.run(stream_all(bench.port, bench.prompts(2, 2 * PAGE_TOKENS), 32, warm, timeout_s=RUN_S))
        for run in options.runs.split(","):
            results.append(asyncio.run(bench.measure(run)))
            print(json.dumps(results[-1]), file=sys.stderr, flush=True)
            count, (p50, p99) = upper_bounds(
                bench.metrics_port, "kernelflume_route_install_seconds", 0.5, 0.99
            )
            installs = {"count": count, "p50_us_at_most": p50 * 1e6, "p99_us_at_most": p99 * 1e6}
            if options.out:
                settings = {key: str(value) for key, value in vars(options).items()}
                report = {"settings": settings, "start_s": start_s, "installs": installs, "runs": results}
                options.out.write_text(json.dumps(report, indent=1), encoding="utf-8")
    print(table(results))
    for result in results:
        figures = result["figures"]
        print(
            f"{result['run']}: contexts {result['of_one_node']:.2f} of one node at the end; "
            f"prefill {result['prefill_s']:.1f} s; captures "
            f"{figures['captures'][0]:.0f} -> {figures['captures'][1]:.0f}; graph steps "
            f"{figures['graph_steps'][1] - figures['graph_steps'][0]:.0f}; restarts "
            f"{figures['restarts'][1] - figures['restarts'][0]:.0f}; {result['event']}"
        )
    print(f"{count} route installs: p50 at most {p50 * 1e6:.0f} us, p99 at most {p99 * 1e6:.0f} us")
    changed = [each for each in results if len(set(each["figures"]["captures"])) > 1]
    if changed:
        raise SystemExit("graphs were captured in the middle of a run")


if __name__ == "__main__":
    main()
