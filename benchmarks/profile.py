"""Steps that a profile predicts beside those that are served.

    kernelflume profile smollm2 --attention-nodes 1 --output profile.json
    python -m benchmarks.profile profile.json [--batches 1,8,32] [--tokens 64] [--rounds 3]

Streams decode over HTTP on a stack of one attention node; a step is the median gap between the tokens of a
stream. The prediction is the scaler's own (paper section 5.2), for as many rows and for the bytes that the
node holds half way.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from benchmarks.decode import prompts, serve_command, server, stream_one

from kernelflume.checkpoint.source import resolve
from kernelflume.core.pipeline_profile import step_s
from kernelflume.core.profile import PerformanceProfile
from kernelflume.runtime.service import free_port

if TYPE_CHECKING:
    from collections.abc import Sequence

PROMPT_TOKENS = 20
"""About as many as one of ``prompts`` has."""


async def measured_step_s(url: str, texts: Sequence[str], tokens: int) -> float:
    """Decode the prompts together; return the median gap between tokens once all have begun."""
    async with httpx.AsyncClient(timeout=600) as client:
        streams = await asyncio.gather(*(stream_one(client, url, "smollm2", text, tokens) for text in texts))
    started = max(arrivals[0] for arrivals in streams)
    return statistics.median(
        later - earlier
        for arrivals in streams
        for earlier, later in itertools.pairwise(arrivals)
        if earlier >= started
    )


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("profile", type=Path)
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    profile = PerformanceProfile.from_dict(json.loads(options.profile.read_text()))
    token_bytes = resolve("smollm2").geometry("float32", "float32").token_bytes
    # Short streams, and a few whose keys and values outweigh the rest of the step.
    cases = [(int(batch), 1) for batch in options.batches.split(",")] + [(4, 60)]
    found: dict[tuple[int, int], list[float]] = {case: [] for case in cases}
    port = free_port()
    with tempfile.TemporaryDirectory() as logs:
        command = serve_command(port, "--scaler-port", "0", "--log-dir", logs, "--attention-nodes", "1")
        with server(command, port, "/ready") as url:
            for _ in range(options.rounds):
                for rows, repeats in cases:
                    texts = [" ".join([text] * repeats) for text in prompts(rows)]
                    found[rows, repeats].append(asyncio.run(measured_step_s(url, texts, options.tokens)))
    print(
        "| rows | tokens each | measured, ms | predicted, ms | predicted / measured |\n|---|---|---|---|---|"
    )
    for (rows, repeats), steps in found.items():
        context = PROMPT_TOKENS * repeats + options.tokens // 2
        predicted = step_s(profile, rows=rows, most_held_bytes=rows * context * token_bytes)
        measured = statistics.median(steps)
        each = " / ".join(f"{1e3 * step:.1f}" for step in steps)
        print(f"| {rows} | {context} | {each} | {1e3 * predicted:.1f} | {predicted / measured:.2f} |")


if __name__ == "__main__":
    main()
