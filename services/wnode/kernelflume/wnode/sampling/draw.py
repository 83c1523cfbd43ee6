"""Drawing tokens by temperature, top_k, top_p and min_p, row by row the same on every device.

Probabilities become integers, so that sums do not depend on the order of summing: neither the batch, nor the
number of threads, nor the device changes a draw. Everything here may be captured in a CUDA graph, but for
``draw`` itself, which looks at the outcome.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from kernelflume.wnode.sampling.randomness import uniform

if TYPE_CHECKING:
    from collections.abc import Sequence as Sequence_

    from kernelflume.wnode.sequence import Sequence

_UNIT = 2.0**40
"""Weight of the likeliest token. Sums over 2**18 tokens stay below 2**58; tokens less likely than the
likeliest by more than this are never drawn."""
_LARGEST = torch.finfo(torch.float32).max
HEAD = 256
"""Likeliest tokens among which top_k and top_p are looked for first: sorting the whole row costs far more."""
_SLICE_ELEMENTS = 1 << 20
"""Logits worked on at once: a few of their temporaries stay in a CPU's cache."""


@dataclass(frozen=True, slots=True)
class DrawTable:
    """What a draw needs to know of each row; tensors of one element a row."""

    temperature: torch.Tensor
    """float64, positive."""
    top_k: torch.Tensor
    """int64; 0 keeps all."""
    top_p: torch.Tensor
    """float64, in (0, 1]."""
    min_weight: torch.Tensor
    """int64: min_p as a weight."""
    keys: torch.Tensor
    """int64."""
    positions: torch.Tensor
    """int64: place of the token to be drawn in its sequence."""

    @classmethod
    def of(cls, sequences: Sequence_[Sequence], device: torch.device) -> DrawTable:
        """Return the table of these sequences."""
        samplings = [sequence.sampling for sequence in sequences]

        def column(values: list[float] | list[int], dtype: type) -> torch.Tensor:
            return torch.from_numpy(np.array(values, dtype)).to(device)

        return cls(
            column([sampling.temperature for sampling in samplings], np.float64),
            column([max(sampling.top_k, 0) for sampling in samplings], np.int64),
            column([sampling.top_p for sampling in samplings], np.float64),
            column([min_weight(sampling.min_p) for sampling in samplings], np.int64),
            column([signed(sequence.random_key) for sequence in sequences], np.int64),
            column([sequence.num_tokens for sequence in sequences], np.int64),
        )

    @property
    def has_filters(self) -> bool:
        """True when a row has a top_k or top_p; looks at the values."""
        return bool(((self.top_k > 0) | (self.top_p < 1.0)).any())

    def __getitem__(self, rows: slice | torch.Tensor) -> DrawTable:
        """Return the table of some rows."""
        return DrawTable(
            self.temperature[rows],
            self.top_k[rows],
            self.top_p[rows],
            self.min_weight[rows],
            self.keys[rows],
            self.positions[rows],
        )


def min_weight(min_p: float) -> int:
    """Return the least weight that ``min_p`` keeps."""
    return int(np.ceil(min_p * _UNIT))


def signed(key: int) -> int:
    """Return the lowest 64 bits of a key as a signed number."""
    return (key + (1 << 63)) % (1 << 64) - (1 << 63)


def draw(logits: torch.Tensor, table: DrawTable) -> torch.Tensor:
    """Draw one token for each row.

    Args:
        logits: [n, vocab] float32; -inf where a token is banned. A row without a token that is not banned
            gives its first.
        table: of the rows.

    Returns:
        [n] int64 on the logits' device.
    """
    num_rows, vocab = logits.shape
    filtered = table.has_filters
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    share = max(1, _SLICE_ELEMENTS // vocab)
    for first in range(0, num_rows, share):
        rows = slice(first, first + share)
        part = logits[rows]
        if not filtered:
            tokens[rows] = draw_any(part, table[rows])
            continue
        drawn, settled = draw_filtered(part, table[rows], head=min(HEAD, vocab))
        if not bool(settled.all()):
            left = (~settled).nonzero().squeeze(1)
            drawn[left], _ = draw_filtered(part[left], table[rows][left], head=vocab)
        tokens[rows] = drawn
    return tokens


def draw_any(logits: torch.Tensor, table: DrawTable) -> torch.Tensor:
    """Draw where no row has a top_k or top_p; see ``draw``."""
    weights = _weights(logits, logits.amax(-1, keepdim=True), table)
    return _pick(logits, weights, table)


def draw_filtered(logits: torch.Tensor, table: DrawTable, *, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw where rows may have a top_k or top_p, looking for their ends among the ``head`` likeliest tokens.

    Tokens as likely as the last one that a filter keeps are kept too: what is kept depends on values alone.

    Returns:
        ([n] int64 tokens, [n] bool: the row is settled). A row that is not needs a larger head; with all of
        the vocabulary every row is settled.
    """
    num_rows, vocab = logits.shape
    likeliest = logits.topk(head, sorted=True).values  # [n, head], the largest first
    largest = likeliest[:, :1]
    has_top_k = ((table.top_k > 0) & (table.top_k < vocab)).unsqueeze(1)
    at = (table.top_k.unsqueeze(1) - 1).clamp(0, head - 1)
    least = torch.where(has_top_k, likeliest.gather(1, at), -torch.inf)
    weights = _weights(logits, largest, table).masked_fill_(logits < least, 0)
    of_head = _weights(likeliest, largest, table).masked_fill_(likeliest < least, 0)
    # The shortest head whose mass reaches top_p: a token goes once those before it suffice.
    wanted = weights.sum(-1, keepdim=True).double() * table.top_p.unsqueeze(1)
    has_top_p = table.top_p.unsqueeze(1) < 1.0
    before = of_head.cumsum(-1) - of_head
    num_kept = (before.double() < wanted).sum(-1, keepdim=True).clamp(min=1)
    last = likeliest.gather(1, num_kept - 1)
    weights.masked_fill_((logits < last) & has_top_p, 0)
    settled = torch.ones(num_rows, dtype=torch.bool, device=logits.device)
    if head < vocab:
        ends = table.top_k.unsqueeze(1) <= head
        settled = ((~has_top_k | ends) & (~has_top_p | (num_kept < head))).squeeze(1)
    return _pick(logits, weights, table), settled


def _weights(logits: torch.Tensor, largest: torch.Tensor, table: DrawTable) -> torch.Tensor:
    """Return each token's weight: int64, ``_UNIT`` for the likeliest, 0 below min_p."""
    # From the largest down: a low temperature then takes the others to nothing, and nothing to a difference
    # of infinities.
    distance = (logits - largest.clamp(-_LARGEST, _LARGEST)).double()
    weights = distance.div_(table.temperature.unsqueeze(1)).exp_().mul_(_UNIT).long()
    return weights.masked_fill_(weights < table.min_weight.unsqueeze(1), 0)


def _pick(logits: torch.Tensor, weights: torch.Tensor, table: DrawTable) -> torch.Tensor:
    mass = weights.cumsum(-1)
    total = mass[:, -1]
    point = (uniform(table.keys, table.positions) * total.double()).long()
    # Rounding may reach the end.
    point = torch.minimum(point, total - 1).unsqueeze(1)
    token = torch.searchsorted(mass, point, right=True).squeeze(1)
    return token.clamp_(max=logits.shape[1] - 1)
