"""What attention costs where a sequence's tokens lie scattered: extents one by one, and short ones together.

    python -m benchmarks.extents [--rows 2]

One step over all layers at the geometry of SmolLM2-135M in float32, one thread, medians. Each column says up
to which length extents count as short.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from kernelflume.anode import kernels
from kernelflume.anode.kernels import TorchStep
from kernelflume.tensor.partials import Partial

LAYERS, KV_HEADS, QUERY_HEADS, HEAD_DIM = 30, 3, 9, 64
NUM_SLOTS, PAGE_TOKENS = 20_000, 16
REPEATS = 15
EXTENTS = ([320], [16] * 4, [16] * 20, [16] * 128, [64] * 8, [256] * 4, [384] * 6, [512] * 4)
SHORT_TOKENS = (0, 128, 384, 1024)


def step_ms(pool: torch.Tensor, rows: int, lengths: list[int]) -> float:
    """Return what a step of so many rows takes, each over extents of these lengths, anywhere in the pool."""
    pages = torch.randperm(NUM_SLOTS // PAGE_TOKENS, generator=torch.Generator().manual_seed(0)).tolist()
    extents = [
        [
            pool.narrow(3, min(pages.pop() * PAGE_TOKENS, NUM_SLOTS - length), length).unbind(0)
            for length in lengths
        ]
        for _ in range(rows)
    ]
    queries = torch.randn(rows, QUERY_HEADS, HEAD_DIM)
    into = Partial(torch.empty_like(queries), torch.empty(rows, QUERY_HEADS))
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        step = TorchStep(queries, [1] * rows, extents, KV_HEADS)
        for layer in range(LAYERS):
            step.run(layer, into)
        seconds.append(time.perf_counter() - began)
    return 1e3 * statistics.median(seconds)


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    pool = torch.randn(2 * LAYERS, 1, KV_HEADS, NUM_SLOTS, HEAD_DIM)
    print("| extents of a row | " + " | ".join(f"{short or 'one by one'}" for short in SHORT_TOKENS) + " |")
    print("|---|" + "---|" * len(SHORT_TOKENS))
    for lengths in EXTENTS:
        cells = []
        for short in SHORT_TOKENS:
            kernels._SHORT_TOKENS = short  # noqa: SLF001 - what is compared
            cells.append(f"{step_ms(pool, options.rows, lengths):.1f}")
        print(f"| {len(lengths)} of {lengths[0]} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
