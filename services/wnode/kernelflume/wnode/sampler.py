"""Choosing the next token from logits; meanings are vLLM's.

Random numbers are a function of the request's key and the position, so that a token depends on neither the
batch nor a restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from kernelflume.wnode.sequence import Sequence

_MASK64 = (1 << 64) - 1
_LARGEST = torch.finfo(torch.float32).max


def sample(logits: torch.Tensor, sequences: list[Sequence], eos_token_ids: frozenset[int]) -> list[int]:
    """Choose one token for each row.

    Args:
        logits: [num_rows, vocab] float32; rows of requests that are not plain greedy are changed.
        sequences: the row's sequence, in order.
        eos_token_ids: tokens that are banned while a request is below its ``min_tokens``.
    """
    plain = [index for index, sequence in enumerate(sequences) if is_plain(sequence)]
    if len(plain) == len(sequences):
        return [int(token) for token in logits.argmax(-1).tolist()]
    logits = logits.cpu()  # one row after another, each by its own request's rules
    chosen = [0] * len(sequences)
    for index, sequence in enumerate(sequences):
        chosen[index] = _sample_row(logits[index], sequence, eos_token_ids)
    return chosen


def is_plain(sequence: Sequence) -> bool:
    """True when a request's next token is the one with the largest logit."""
    sampling = sequence.sampling
    return sampling.is_greedy and not sampling.has_penalties and len(sequence.output) >= sampling.min_tokens


def _sample_row(row: torch.Tensor, sequence: Sequence, eos_token_ids: frozenset[int]) -> int:
    sampling = sequence.sampling
    if sampling.has_penalties:
        _penalize(row, sequence)
    if len(sequence.output) < sampling.min_tokens:
        banned = [*sampling.stop_token_ids, *([] if sampling.ignore_eos else eos_token_ids)]
        row[banned] = -torch.inf
    if sampling.is_greedy:
        return int(row.argmax())
    # From the largest down: a low temperature then takes the others to -inf, and nothing to a difference of
    # infinities.
    scaled = row.sub_(row.max()).div_(sampling.temperature)
    order: torch.Tensor | None = None
    if 0 < sampling.top_k < row.numel():
        scaled, order = scaled.topk(sampling.top_k)
    elif sampling.top_p < 1.0:
        scaled, order = scaled.sort(descending=True)
    probabilities = scaled.double().softmax(-1)
    if sampling.min_p > 0.0:
        probabilities[probabilities < sampling.min_p * probabilities.max()] = 0.0
    if sampling.top_p < 1.0:
        # Keep the shortest head whose mass reaches top_p: drop a token once those before it suffice.
        mass_before = probabilities.cumsum(-1) - probabilities
        kept = probabilities.sum() * sampling.top_p
        # The most likely token stays even where the product is too small for a float.
        probabilities[1:][mass_before[1:] >= kept] = 0.0
    mass = probabilities.cumsum(-1)
    point = _uniform(sequence.random_key, sequence.num_tokens) * float(mass[-1])
    index = int(torch.searchsorted(mass, point, right=True))
    index = min(index, int(probabilities.nonzero()[-1]))
    return index if order is None else int(order[index])


def _penalize(row: torch.Tensor, sequence: Sequence) -> None:
    sampling = sequence.sampling
    if sampling.repetition_penalty != 1.0:
        seen = torch.tensor(sorted({*sequence.prompt, *sequence.output_counts}), dtype=torch.int64)
        values = row[seen]
        factor = sampling.repetition_penalty
        row[seen] = torch.where(values > 0, values / factor, values * factor)
    if sequence.output_counts and (sampling.frequency_penalty or sampling.presence_penalty):
        tokens = torch.tensor(list(sequence.output_counts), dtype=torch.int64)
        counts = torch.tensor(list(sequence.output_counts.values()), dtype=row.dtype)
        row[tokens] -= counts * sampling.frequency_penalty + sampling.presence_penalty
    row.clamp_(-_LARGEST, _LARGEST)


def _uniform(key: int, position: int) -> float:
    bits = np.random.Philox(key=key & _MASK64, counter=position)
    return float(np.random.Generator(bits).random())
