"""Times decoder steps without attention: which projection takes how long, and what packing gains.

    python benchmarks/decoder.py [--model smollm2] [--rows 1 8 32 256] [--threads 1 2]

All variants run in one process, round by round in turn, so that a busy moment of the machine hits them all.
A line is the fastest round, with the median step beside it: where they lie apart, the machine was not quiet.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernelflume.checkpoint.source import resolve
from kernelflume.wnode.model.decoder import load_decoder

if TYPE_CHECKING:
    from kernelflume.checkpoint.config import ModelConfig
    from kernelflume.wnode.model.decoder import Decoder

KINDS = ("query", "key_value", "output", "gate_up", "down", "head")
MAX_HEAD_ROWS = 32  # a prefill chunk asks for the logits of its last row only


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a step of some number of rows reads and writes."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    kv: torch.Tensor
    head_rows: torch.Tensor
    by_kind: dict[str, torch.Tensor]
    """Rows of the width that each projection takes."""


def make_inputs(config: ModelConfig, num_rows: int) -> Inputs:
    """Draw rows; their numbers do not change the time."""
    attention_width = config.num_query_heads * config.head_dim
    widths = {"output": attention_width, "down": config.intermediate_size}
    head_rows = torch.arange(num_rows)[-MAX_HEAD_ROWS:] if num_rows <= MAX_HEAD_ROWS else torch.tensor([-1])
    return Inputs(
        token_ids=torch.randint(config.vocab_size, (num_rows,)),
        positions=torch.arange(num_rows),
        kv=torch.empty(num_rows, 2, config.num_kv_heads, config.head_dim),
        head_rows=head_rows % num_rows,
        by_kind={
            kind: torch.randn(
                len(head_rows) if kind == "head" else num_rows, widths.get(kind, config.hidden_size)
            )
            for kind in KINDS
        },
    )


def step_s(decoder: Decoder, inputs: Inputs) -> float:
    """Run one step, the query in place of the attention's output; return its seconds."""
    start = time.perf_counter()
    state = decoder.begin(inputs.token_ids, inputs.positions)
    for layer in range(decoder.config.num_layers):
        query = decoder.project_query(layer, state)
        decoder.project_kv(layer, state, inputs.kv)
        decoder.finish_layer(layer, state, query.flatten(1))
    decoder.logits(state, inputs.head_rows)
    return time.perf_counter() - start


@torch.inference_mode()
def projections_s(decoder: Decoder, inputs: Inputs) -> dict[str, float]:
    """Run every projection of a step in order, nothing else; return the seconds of each kind.

    In order, because a layer's weights have left the caches by the time that its turn comes again.
    """
    seconds = dict.fromkeys(KINDS, 0.0)
    for layer in decoder.layers:
        for kind in KINDS[:-1]:
            start = time.perf_counter()
            getattr(layer, kind)(inputs.by_kind[kind])
            seconds[kind] += time.perf_counter() - start
    start = time.perf_counter()
    decoder.head(inputs.by_kind["head"])
    seconds["head"] = time.perf_counter() - start
    return seconds


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 256])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=4.0, help="time for each line of the table")
    options = parser.parse_args()

    checkpoint = resolve(options.model)
    config = checkpoint.config
    variants = {
        name: load_decoder(checkpoint, dtype=torch.float32, device="cpu", pack_weights=packed)
        for name, packed in (("plain", False), ("packed", True))
    }
    print(f"{options.model}, float32, torch {torch.__version__}; milliseconds a step")
    print(f"{'rows':>4} {'threads':>7} {'variant':>7} {'step':>8} {'median':>8}", end=" ")
    print(*(f"{kind:>9}" for kind in KINDS), f"{'rest':>8}")
    for num_rows in options.rows:
        inputs = make_inputs(config, num_rows)
        for num_threads in options.threads:
            torch.set_num_threads(num_threads)
            steps: dict[str, list[float]] = {name: [] for name in variants}
            parts: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
            deadline = time.perf_counter() + options.seconds * len(variants)
            while time.perf_counter() < deadline or len(steps["packed"]) < 5:
                for name, decoder in variants.items():
                    steps[name].append(step_s(decoder, inputs))
                    parts[name].append(projections_s(decoder, inputs))
            for name in variants:
                step, median = min(steps[name]), statistics.median(steps[name])
                best = min(parts[name], key=lambda part: sum(part.values()))
                print(
                    f"{num_rows:>4} {num_threads:>7} {name:>7} {step * 1e3:>8.2f} {median * 1e3:>8.2f}",
                    end=" ",
                )
                print(*(f"{best[kind] * 1e3:>9.2f}" for kind in KINDS), end=" ")
                print(f"{(step - sum(best.values())) * 1e3:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
