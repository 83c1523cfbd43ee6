"""Choosing the next token of every row from its logits; meanings are vLLM's.

Random numbers are a function of the request's key and the position, so that a token depends on neither the
batch nor a restart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from kernelflume.wnode.sampling.adjust import adjust
from kernelflume.wnode.sampling.draw import DrawTable, draw
from kernelflume.wnode.sampling.logprobs import RawLogprobs

if TYPE_CHECKING:
    from kernelflume.core.sampling import TokenLogprobs
    from kernelflume.wnode.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Sampled:
    """The tokens of one step."""

    tokens: list[int]
    """One a row."""
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    """By row, where the request asked for them."""

    def extend(self, other: Sampled) -> None:
        """Add the rows of another part of the batch behind these."""
        first = len(self.tokens)
        self.tokens.extend(other.tokens)
        self.logprobs.update((first + row, found) for row, found in other.logprobs.items())


@torch.inference_mode()
def sample(logits: torch.Tensor, sequences: list[Sequence], eos_token_ids: frozenset[int]) -> Sampled:
    """Choose one token for each row.

    Args:
        logits: [num_rows, vocab] float32, on any device; rows of requests with rules are changed.
        sequences: the row's sequence, in order.
        eos_token_ids: tokens that are banned while a request is below its ``min_tokens``.
    """
    if all(sequence.is_plain for sequence in sequences):
        return Sampled(logits.argmax(-1).tolist())
    asking = [row for row, sequence in enumerate(sequences) if sequence.sampling.logprobs is not None]
    raw: RawLogprobs | None = None
    if asking:
        num_top = [sequences[row].sampling.logprobs or 0 for row in asking]
        raw = RawLogprobs(logits[torch.tensor(asking, device=logits.device)], num_top)
    ruled = [row for row, sequence in enumerate(sequences) if sequence.has_rules]
    if ruled:
        index = torch.tensor(ruled, device=logits.device)
        part = logits[index]
        adjust(part, [sequences[row] for row in ruled], eos_token_ids)
        logits[index] = part
    drawn = [row for row, sequence in enumerate(sequences) if not sequence.sampling.is_greedy]
    tokens: list[int]
    if len(drawn) == len(sequences):
        tokens = draw(logits, DrawTable.of(sequences, logits.device)).tolist()
    else:
        chosen = logits.argmax(-1)
        if drawn:
            index = torch.tensor(drawn, device=logits.device)
            table = DrawTable.of([sequences[row] for row in drawn], logits.device)
            chosen[index] = draw(logits[index], table)
        tokens = chosen.tolist()
    if raw is None:
        return Sampled(tokens)
    told = raw.of([tokens[row] for row in asking])
    return Sampled(tokens, dict(zip(asking, told, strict=True)))
