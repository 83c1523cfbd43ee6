"""What a request's rules do to its logits before a token is chosen; all rows of a batch at once.

In vLLM's order: grammar, allowed tokens, min_tokens, logit_bias, then the penalties.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence as Sequence_

    from kernelflume.wnode.sequence import Sequence

_LARGEST = torch.finfo(torch.float32).max


def adjust(logits: torch.Tensor, sequences: Sequence_[Sequence], eos_token_ids: frozenset[int]) -> None:
    """Apply every rule but temperature and filters to the logits, in place.

    Args:
        logits: [n, vocab] float32.
        sequences: the row's sequence, in order.
        eos_token_ids: tokens that end a request which does not ignore them.
    """
    _follow_grammars(logits, sequences)
    for row, sequence in enumerate(sequences):
        if sequence.sampling.allowed_token_ids:
            _keep_only(logits[row], sequence.sampling.allowed_token_ids)
    _ban_ends(logits, sequences, eos_token_ids)
    _add_bias(logits, sequences)
    _penalize(logits, sequences)


def _follow_grammars(logits: torch.Tensor, sequences: Sequence_[Sequence]) -> None:
    rows = [row for row, sequence in enumerate(sequences) if sequence.matcher is not None]
    if not rows:
        return
    vocab = logits.shape[1]
    words = np.empty((len(rows), -(-vocab // 32)), np.int32)
    for place, row in enumerate(rows):
        matcher = sequences[row].matcher
        assert matcher is not None  # noqa: S101 - just looked
        words[place] = matcher.allowed_words()
    allowed = torch.from_numpy(words).to(logits.device).unsqueeze(-1)
    bits = (allowed >> torch.arange(32, dtype=torch.int32, device=logits.device)) & 1
    banned = bits.flatten(1)[:, :vocab] == 0
    index = torch.tensor(rows, device=logits.device)
    logits[index] = logits[index].masked_fill_(banned, -torch.inf)


def _keep_only(row: torch.Tensor, token_ids: Sequence_[int]) -> None:
    index = torch.tensor(token_ids, device=row.device)
    kept = row[index]
    row.fill_(-torch.inf)
    row[index] = kept


def _ban_ends(logits: torch.Tensor, sequences: Sequence_[Sequence], eos_token_ids: frozenset[int]) -> None:
    rows: list[int] = []
    tokens: list[int] = []
    for row, sequence in enumerate(sequences):
        sampling = sequence.sampling
        if len(sequence.output) >= sampling.min_tokens:
            continue
        banned = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos_token_ids)}
        # A text that a grammar has completed ends, however short: no other token is left.
        if banned and not (sequence.matcher is not None and sequence.matcher.allows_only(banned)):
            rows += [row] * len(banned)
            tokens += banned
    if rows:
        logits[_places(rows, tokens, logits.device)] = -torch.inf


def _add_bias(logits: torch.Tensor, sequences: Sequence_[Sequence]) -> None:
    found = [
        (row, token, bias)
        for row, sequence in enumerate(sequences)
        for token, bias in sequence.sampling.logit_bias
    ]
    if not found:
        return
    rows, tokens, biases = zip(*found, strict=True)
    places = _places(rows, tokens, logits.device)
    logits[places] += torch.tensor(biases, dtype=logits.dtype, device=logits.device)


def _penalize(logits: torch.Tensor, sequences: Sequence_[Sequence]) -> None:
    rows = [row for row, sequence in enumerate(sequences) if sequence.seen is not None]
    if not rows:
        return
    seen = [sequence.seen for sequence in sequences if sequence.seen is not None]
    samplings = [sequences[row].sampling for row in rows]
    lengths = [len(of_row.tokens) for of_row in seen]
    places = _places(
        np.repeat(rows, lengths), np.concatenate([of_row.tokens for of_row in seen]), logits.device
    )

    def spread(values: list[float]) -> torch.Tensor:
        return torch.from_numpy(np.repeat(np.array(values, np.float64), lengths)).to(logits.device)

    counts = torch.from_numpy(np.concatenate([of_row.counts for of_row in seen])).to(logits.device)
    # In float64, where the smallest factors are not 0 yet.
    factor = spread([sampling.repetition_penalty for sampling in samplings])
    values = logits[places].double()
    values = torch.where(values > 0, values / factor, values * factor)
    values -= counts * spread([sampling.frequency_penalty for sampling in samplings])
    values -= (counts > 0) * spread([sampling.presence_penalty for sampling in samplings])
    banned = logits[places] == -torch.inf
    logits[places] = values.clamp_(-_LARGEST, _LARGEST).to(logits.dtype).masked_fill_(banned, -torch.inf)


def _places(
    rows: Sequence_[int] | np.ndarray, tokens: Sequence_[int] | np.ndarray, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        torch.from_numpy(np.asarray(rows, np.int64)).to(device),
        torch.from_numpy(np.asarray(tokens, np.int64)).to(device),
    )
