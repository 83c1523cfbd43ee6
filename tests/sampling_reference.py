"""The sampler's meanings once more: one row, plain loops, Python integers and float64. Slow and obvious."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence as Sequence_

    from kernelflume.wnode.sequence import Sequence

MASK = (1 << 64) - 1
UNIT = 2.0**40
LARGEST = float(np.finfo(np.float32).max)


def mix(value: int) -> int:
    """Return SplitMix64's output function."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def uniform(key: int, position: int) -> float:
    golden = 0x9E3779B97F4A7C15
    start = mix((key + golden) & MASK)
    return (mix((start + (position + 1) * golden) & MASK) >> 11) * 2.0**-53


def adjusted(logits: Sequence_[float], sequence: Sequence, eos: frozenset[int]) -> list[float]:
    """Return the logits after allowed tokens, min_tokens, bias and penalties."""
    sampling = sequence.sampling
    row = [float(value) for value in logits]
    if sampling.allowed_token_ids:
        row = [value if token in sampling.allowed_token_ids else -math.inf for token, value in enumerate(row)]
    if len(sequence.output) < sampling.min_tokens:
        for token in {*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos)}:
            row[token] = -math.inf
    for token, bias in sampling.logit_bias:
        row[token] = float(np.float32(row[token]) + np.float32(bias))
    counts = Counter(sequence.output)
    if sampling.has_penalties:
        for token in {*sequence.prompt, *sequence.output}:
            value = row[token]
            if value == -math.inf:
                continue
            value = value / sampling.repetition_penalty if value > 0 else value * sampling.repetition_penalty
            value -= counts[token] * sampling.frequency_penalty
            value -= sampling.presence_penalty if counts[token] else 0.0
            row[token] = float(np.float32(min(max(value, -LARGEST), LARGEST)))
    return row


def kept_weights(row: Sequence_[float], sequence: Sequence) -> list[int]:
    """Return each token's weight, 0 where a filter drops it."""
    sampling = sequence.sampling
    largest = min(max(*row, -LARGEST), LARGEST)
    weights = [
        int(math.exp(float(np.float32(value) - np.float32(largest)) / sampling.temperature) * UNIT)
        for value in row
    ]
    weights = [weight if weight >= math.ceil(sampling.min_p * UNIT) else 0 for weight in weights]
    order = sorted(range(len(row)), key=lambda token: -row[token])
    if 0 < sampling.top_k < len(row):
        least = row[order[sampling.top_k - 1]]
        weights = [weight if row[token] >= least else 0 for token, weight in enumerate(weights)]
    if sampling.top_p < 1.0:
        wanted = sum(weights) * sampling.top_p
        mass, last = 0, order[0]
        for token in order:
            if token != order[0] and mass >= wanted:
                break
            last = token
            mass += weights[token]
        weights = [weight if row[token] >= row[last] else 0 for token, weight in enumerate(weights)]
    return weights


def choose(logits: Sequence_[float], sequence: Sequence, eos: frozenset[int]) -> int:
    """Return the next token."""
    row = adjusted(logits, sequence, eos)
    if sequence.sampling.is_greedy:
        return row.index(max(row))
    weights = kept_weights(row, sequence)
    point = min(
        int(uniform(sequence.random_key & MASK, sequence.num_tokens) * float(sum(weights))), sum(weights) - 1
    )
    mass = 0
    for token, weight in enumerate(weights):
        mass += weight
        if mass > point:
            return token
    return len(row) - 1
