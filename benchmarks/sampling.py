"""What choosing the next tokens costs a step, by batch, vocabulary and what the requests ask for.

    python -m benchmarks.sampling [--device cuda] [--json]

Logits are random: `flat` rows have no clear favourite, so that top_p keeps thousands of tokens, others
some, as a language model's mostly do. Each figure is the median of the steps of one setting in milliseconds,
the copy of the tokens to the host included. On a CPU it is the processor's time of one thread, which says the
same on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch

from kernelflume.core.sampling import SamplingParameters
from kernelflume.wnode.sampler import sample
from kernelflume.wnode.sequence import Sequence

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top_k 50": {"temperature": 0.8, "top_k": 50},
    "top_p 0.95": {"temperature": 0.8, "top_p": 0.95},
    "top_p 0.95, flat": {"temperature": 0.8, "top_p": 0.95},
    "top_k 50, top_p 0.95, penalties": {
        "temperature": 0.8,
        "top_k": 50,
        "top_p": 0.95,
        "presence_penalty": 0.5,
        "repetition_penalty": 1.1,
    },
    "greedy, 5 logprobs": {"temperature": 0.0, "logprobs": 5},
}
BATCHES = (1, 8, 32, 256)
VOCABULARIES = (49152, 128256)
PROMPT_TOKENS = 512


def sequences(kind: dict[str, Any], count: int, vocab: int) -> list[Sequence]:
    """Return running sequences of one kind."""
    prompt = torch.randint(vocab, (PROMPT_TOKENS,), generator=torch.Generator().manual_seed(1)).tolist()
    return [
        Sequence(str(key), prompt, SamplingParameters(max_tokens=1000, **kind), random_key=key)
        for key in range(count)
    ]


def measure(
    kind: dict[str, Any], *, spread: float, batch: int, vocab: int, device: str, budget_s: float
) -> float:
    """Return the median milliseconds of a step."""
    generator = torch.Generator().manual_seed(0)
    source = (torch.randn(batch, vocab, generator=generator) * spread).to(device)
    running = sequences(kind, batch, vocab)
    now = time.process_time if device == "cpu" else time.perf_counter
    times: list[float] = []
    ends = time.perf_counter() + budget_s
    while len(times) < 4 or (time.perf_counter() < ends and len(times) < 200):
        logits = source.clone()
        if device != "cpu":
            torch.cuda.synchronize()
        started = now()
        sample(logits, running, frozenset({2}))
        times.append(now() - started)
    return statistics.median(times[1:]) * 1000


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--budget", type=float, default=1.0, help="seconds for each figure")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    rows = []
    for vocab in VOCABULARIES:
        for name, kind in KINDS.items():
            try:
                figures = [
                    measure(
                        kind,
                        spread=1.0 if "flat" in name else 4.0,
                        batch=batch,
                        vocab=vocab,
                        device=options.device,
                        budget_s=options.budget,
                    )
                    for batch in options.batches
                ]
            except TypeError:  # a release without the parameter
                continue
            rows.append(
                {
                    "vocab": vocab,
                    "kind": name,
                    "ms": dict(zip(map(str, options.batches), figures, strict=True)),
                }
            )
            if not options.json:
                print(f"| {vocab} | {name} | " + " | ".join(f"{value:.2f}" for value in figures) + " |")
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
