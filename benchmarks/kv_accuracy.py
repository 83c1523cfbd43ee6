"""What narrower formats of keys and values change in a model's predictions, on the equality tests' prompts.

    python benchmarks/kv_accuracy.py [--model smollm2] [--prompts word,story]

Each prompt with its continuation (48 greedy tokens of the model in float32, tests/golden) goes through the
product's decoder once for each format, every row attending to keys and values as the pool would hold them.
That is what the weight node and any number of attention nodes compute together. The tokens are given, so
one that comes out differently has no consequences.

- *continuation*: the positions that predict the 48 tokens; *prompt*: those within the prompts, which the
  model did not write itself.
- *divided*: the continuation again, computed in chunks of 16 rows over the pools of two attention nodes and
  compared with the same format undivided: what the order of summation alone does.
- KL: divergence from float32's distribution over the vocabulary, in nats.
- logits: length of the difference over the length of float32's logits, both about their mean.
- top-1: positions whose most likely token is float32's.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - the name every PyTorch program uses

from kernelflume.anode.kernels import Share, choose_kernel
from kernelflume.anode.kvpool import HeldSequence, KvPool
from kernelflume.checkpoint.source import resolve
from kernelflume.core.geometry import kv_dtype_of
from kernelflume.tensor.kv_format import round_to_format
from kernelflume.tensor.partials import Partial, merge_into
from kernelflume.wnode.attention import SelfAttention
from kernelflume.wnode.model.decoder import StepState, load_decoder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernelflume.core.geometry import KvGeometry
    from kernelflume.wnode.model.decoder import Decoder

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "smollm2.json"
FORMATS = ("float32", "bfloat16", "float16", "fp8")
CHUNK_ROWS, PAGE_TOKENS = 16, 16
LONGEST_DIVIDED = 512
"""Longer prompts are not computed in chunks, which takes long."""
SLICE_ROWS = 256
"""Rows whose logits are in memory at a time."""


@dataclass(slots=True)
class Extremes:
    """What keys and values went through the rounding."""

    largest: float = 0.0
    num_saturated: int = 0

    def see(self, numbers: torch.Tensor, limit: float) -> None:
        """Take note of keys and values before they are rounded."""
        sizes = numbers.abs()
        self.largest = max(self.largest, float(sizes.max()))
        self.num_saturated += int((sizes > limit).sum())


@dataclass(slots=True)
class Comparison:
    """Predictions with rounded keys and values against those without, over any number of positions."""

    divergences: list[torch.Tensor] = field(default_factory=list)
    errors: list[torch.Tensor] = field(default_factory=list)
    num_agreeing: int = 0
    loss: float = 0.0
    exact_loss: float = 0.0
    num_positions: int = 0

    def add(self, exact: torch.Tensor, rounded: torch.Tensor, targets: torch.Tensor) -> None:
        """Take logits [n, vocab] of n positions and the tokens that follow them, int64 [n]."""
        exact_log, rounded_log = exact.double().log_softmax(-1), rounded.double().log_softmax(-1)
        self.divergences.append((exact_log.exp() * (exact_log - rounded_log)).sum(-1))
        centred = exact - exact.mean(-1, keepdim=True)
        moved = rounded - rounded.mean(-1, keepdim=True) - centred
        self.errors.append(moved.norm(dim=-1) / centred.norm(dim=-1))
        self.num_agreeing += int((exact.argmax(-1) == rounded.argmax(-1)).sum())
        self.loss += float(F.nll_loss(rounded_log, targets, reduction="sum"))
        self.exact_loss += float(F.nll_loss(exact_log, targets, reduction="sum"))
        self.num_positions += len(targets)

    def cells(self) -> list[str]:
        """Return the columns of a table row: KL, logits, top-1, perplexity and its change."""
        divergences, errors = torch.cat(self.divergences), torch.cat(self.errors)
        perplexity = math.exp(self.loss / self.num_positions)
        change = perplexity / math.exp(self.exact_loss / self.num_positions) - 1
        return [
            f"{self.num_positions}",
            f"{divergences.mean():.1e}",
            f"{divergences.max():.1e}",
            f"{errors.mean():.1e}",
            f"{errors.max():.1e}",
            f"{self.num_agreeing / self.num_positions:.2%}",
            f"{perplexity:.4f}",
            f"{change:+.3%}",
        ]


COLUMNS = ("positions", "KL", "most", "logits", "most", "top-1", "perplexity", "change")


def final_state(
    decoder: Decoder, tokens: torch.Tensor, kv_dtype: torch.dtype, extremes: Extremes
) -> torch.Tensor:
    """Run all layers over one sequence, each row attending to what the pool holds of it and those before."""
    config = decoder.config
    state = decoder.begin(tokens, torch.arange(len(tokens)))
    attention = SelfAttention([len(tokens)], config.num_query_heads, config.num_kv_heads, config.head_dim)
    keys_values = torch.empty(len(tokens), 2, config.num_kv_heads, config.head_dim)
    for layer in range(config.num_layers):
        query = decoder.project_query(layer, state)
        key, value = decoder.project_kv(layer, state, out=keys_values)
        extremes.see(keys_values, torch.finfo(kv_dtype).max)
        round_to_format(keys_values, kv_dtype)
        decoder.finish_layer(layer, state, attention.attend(query, key, value).out.reshape(len(tokens), -1))
    return state.hidden


def final_state_in_chunks(decoder: Decoder, tokens: torch.Tensor, geometry: KvGeometry) -> torch.Tensor:
    """Do the same as the served stack: chunk by chunk, with what was before in the pools of two nodes."""
    config, kv_dtype = decoder.config, getattr(torch, geometry.kv_dtype)
    pool_bytes = (len(tokens) + 2 * PAGE_TOKENS) * geometry.token_bytes
    pools = [KvPool(geometry, page_tokens=PAGE_TOKENS, num_bytes=pool_bytes) for _ in range(2)]
    sequences = [HeldSequence() for _ in pools]
    hidden, first = [], 0
    for number, chunk in enumerate(tokens.split(CHUNK_ROWS)):
        rows = len(chunk)
        state = decoder.begin(chunk, torch.arange(first, first + rows))
        own_attention = SelfAttention([rows], config.num_query_heads, config.num_kv_heads, config.head_dim)
        queries = torch.empty(rows, config.num_query_heads, config.head_dim)
        steps = [
            choose_kernel("torch", pool).plan(queries, [Share(rows, sequence)])
            for pool, sequence in zip(pools, sequences, strict=True)
            if sequence.num_tokens
        ]
        into = Partial(torch.empty_like(queries), torch.empty(queries.shape[:2]))
        keys_values = torch.empty(config.num_layers, rows, 2, config.num_kv_heads, config.head_dim)
        for layer in range(config.num_layers):
            queries.copy_(decoder.project_query(layer, state))
            key, value = decoder.project_kv(layer, state, out=keys_values[layer])
            round_to_format(keys_values[layer], kv_dtype)
            own = own_attention.attend(queries, key, value)
            for step in steps:
                step.run(layer, into)
                merge_into(own.out, own.lse, into.out, into.lse)
            decoder.finish_layer(layer, state, own.out.reshape(rows, -1))
        node = number % len(pools)
        slots = pools[node].append(sequences[node], first, rows)
        pools[node].store(slots, keys_values.to(kv_dtype))
        hidden.append(state.hidden)
        first += rows
    return torch.cat(hidden)


def logits(decoder: Decoder, hidden: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return the logits of some positions [n, vocab]; ``hidden`` as the last layer left it."""
    return decoder.logits(StepState(hidden[positions], torch.empty(0)))


def slices(first: int, end: int) -> Iterator[torch.Tensor]:
    """Give positions from ``first`` to before ``end`` in parts."""
    yield from torch.arange(first, end).split(SLICE_ROWS)


@torch.inference_mode()
def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2", help="the tokens of tests/golden are SmolLM2's")
    parser.add_argument("--prompts", default="", help="names in tests/golden/prompts.py; by default all")
    options = parser.parse_args()
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    names = options.prompts.split(",") if options.prompts else list(golden)
    checkpoint = resolve(options.model)
    decoder = load_decoder(checkpoint, dtype=torch.float32, device="cpu")
    parts = ("continuation", "prompt", "divided")
    found = {name: {part: Comparison() for part in parts} for name in FORMATS}
    extremes = {name: Extremes() for name in FORMATS}
    for name in names:
        prompt, output = golden[name]["prompt"], golden[name]["output"]
        tokens = torch.tensor(prompt + output)
        exact = final_state(decoder, tokens, torch.float32, extremes["float32"])
        # A position's logits predict the token behind it.
        ranges = {"prompt": (0, len(prompt) - 1), "continuation": (len(prompt) - 1, len(tokens) - 1)}
        for asked in FORMATS:
            kv_dtype = getattr(torch, kv_dtype_of(asked, "float32"))
            rounded = final_state(decoder, tokens, kv_dtype, extremes[asked])
            pairs = {part: (exact, rounded) for part in ranges if asked != "float32"}
            if len(prompt) <= LONGEST_DIVIDED:
                geometry = checkpoint.geometry("float32", kv_dtype_of(asked, "float32"))
                pairs["divided"] = (rounded, final_state_in_chunks(decoder, tokens, geometry))
            for part, (one, other) in pairs.items():
                for positions in slices(*ranges.get(part, ranges["continuation"])):
                    if len(positions):
                        found[asked][part].add(
                            logits(decoder, one, positions),
                            logits(decoder, other, positions),
                            tokens[positions + 1],
                        )
    print(f"{options.model}, {len(names)} prompts, all else in float32, torch {torch.__version__},")
    print(f"{platform.processor() or platform.machine()}, {len(os.sched_getaffinity(0))} cores\n")
    print(f"| keys, values | part | {' | '.join(COLUMNS)} |")
    print("|---" * (len(COLUMNS) + 2) + "|")
    for asked in FORMATS:
        for part in parts:
            if found[asked][part].num_positions:
                print(f"| {asked} | {part} | {' | '.join(found[asked][part].cells())} |")
    for asked in FORMATS:
        seen = extremes[asked]
        print(f"\n{asked}: largest key or value {seen.largest:.1f}, {seen.num_saturated} saturated", end="")
    print()


if __name__ == "__main__":
    main()
