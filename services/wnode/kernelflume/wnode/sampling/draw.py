"""Drawing tokens by temperature, top_k, top_p and min_p, row by row the same on every device.

Probabilities become integers, so that sums do not depend on the order of summing: neither the batch, nor the
number of threads, nor the device changes a draw. On a GPU ``draw_any``, and ``draw_filtered`` where the head
is not all of the vocabulary, only enqueue; ``draw`` looks at the outcome.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
_HEADS = (128, 2048)
"""Likeliest tokens among which top_k and top_p are looked for first, and then, before a row is sorted."""
_SLICE_ELEMENTS = 1 << 20
"""Logits worked on at once: a few of their temporaries stay in a CPU's cache."""
_GPU_SLICE_ELEMENTS = 1 << 24
"""The same on a GPU, where it bounds the temporaries to some hundred MiB."""


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
    has_min_p: bool = True
    """Some row may have a min_p."""
    needs_total: bool = True
    """Some row may have a top_p without a top_k, whose share is one of the whole vocabulary."""

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
            has_min_p=any(sampling.min_p > 0.0 for sampling in samplings),
            needs_total=any(sampling.top_p < 1.0 and sampling.top_k <= 0 for sampling in samplings),
        )

    def to(self, device: torch.device) -> DrawTable:
        """Return the table on a device, without waiting for what runs there."""
        if device.type == "cpu":
            return self

        def moved(column: torch.Tensor) -> torch.Tensor:
            return column.pin_memory().to(device, non_blocking=True)

        return replace(
            self,
            temperature=moved(self.temperature),
            top_k=moved(self.top_k),
            top_p=moved(self.top_p),
            min_weight=moved(self.min_weight),
            keys=moved(self.keys),
            positions=moved(self.positions),
        )

    def at(self, positions: torch.Tensor) -> DrawTable:
        """Return the table for other places in the same sequences."""
        return replace(self, positions=positions)

    @property
    def has_filters(self) -> torch.Tensor:
        """[n] bool: the row has a top_k or top_p."""
        return (self.top_k > 0) | (self.top_p < 1.0)

    def __getitem__(self, rows: torch.Tensor) -> DrawTable:
        """Return the table of some rows."""
        return DrawTable(
            self.temperature[rows],
            self.top_k[rows],
            self.top_p[rows],
            self.min_weight[rows],
            self.keys[rows],
            self.positions[rows],
            has_min_p=self.has_min_p,
            needs_total=self.needs_total,
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
            gives some token all the same.
        table: of the rows.

    Returns:
        [n] int64 on the logits' device.
    """
    num_rows, vocab = logits.shape
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    share = max(1, (_SLICE_ELEMENTS if logits.is_cpu else _GPU_SLICE_ELEMENTS) // vocab)
    filtered = table.has_filters.tolist()
    for wanted, choose in ((False, draw_any), (True, _draw_filtered)):
        rows = [row for row, has_filters in enumerate(filtered) if has_filters is wanted]
        for first in range(0, len(rows), share):
            index = torch.tensor(rows[first : first + share], device=logits.device)
            tokens[index] = choose(logits[index], table[index])
    return tokens


def _draw_filtered(logits: torch.Tensor, table: DrawTable) -> torch.Tensor:
    """Draw among the likeliest tokens; where these do not settle it, among more of them."""
    vocab = logits.shape[1]
    tokens, settled = draw_filtered(logits, table, head=min(_HEADS[0], vocab))
    for head in (*_HEADS[1:], vocab):
        if bool(settled.all()):
            break
        left = (~settled).nonzero().squeeze(1)
        tokens[left], settled[left] = draw_filtered(logits[left], table[left], head=min(head, vocab))
    return tokens


def draw_any(logits: torch.Tensor, table: DrawTable) -> torch.Tensor:
    """Draw from all tokens that min_p keeps; see ``draw``."""
    return _pick(_weights(logits, logits.amax(-1, keepdim=True), table), table)


def draw_filtered(logits: torch.Tensor, table: DrawTable, *, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw where every row has a top_k or top_p, from the ``head`` likeliest tokens.

    Tokens as likely as the last one that a filter keeps are kept too: what is kept depends on values alone.
    The draw runs through the kept tokens in the order of their ids, as it would through the whole row.

    Returns:
        ([n] int64 tokens, [n] bool: the row is settled). A row that is not needs a larger head; with all of
        the vocabulary every row is settled.
    """
    if head == logits.shape[1]:
        return _draw_sorted(logits, table)
    values, ids = logits.topk(head, sorted=True)
    weights = _weights(values, values[:, :1], table)
    total: torch.Tensor | None = None
    if table.needs_total:
        total = _weights(logits, values[:, :1], table).sum(-1, keepdim=True)
    least = _least_kept(values, weights, total, table, vocab=logits.shape[1])
    weights.masked_fill_(values < least, 0)
    # Tokens outside are less likely than all that are kept.
    settled = (values[:, -1:] < least).squeeze(1) & (table.top_k <= head)
    ids, order = ids.sort(-1)
    place = _pick(weights.gather(1, order), table)
    return ids.gather(1, place.unsqueeze(1)).squeeze(1), settled


def _draw_sorted(logits: torch.Tensor, table: DrawTable) -> tuple[torch.Tensor, torch.Tensor]:
    if logits.is_cpu:  # many times as fast as torch's, which brings the places along
        values = torch.from_numpy(np.sort(logits.numpy(), -1)).flip(-1)
    else:
        values = logits.sort(-1, descending=True).values
    weights = _weights(values, values[:, :1], table)
    least = _least_kept(values, weights, None, table, vocab=logits.shape[1])
    weights = _weights(logits, values[:, :1], table).masked_fill_(logits < least, 0)
    return _pick(weights, table), torch.ones(len(logits), dtype=torch.bool, device=logits.device)


def _least_kept(
    values: torch.Tensor, weights: torch.Tensor, total: torch.Tensor | None, table: DrawTable, *, vocab: int
) -> torch.Tensor:
    """Return the least logit that the filters keep, [n, 1].

    Args:
        values: [n, head] float32, the likeliest first.
        weights: of these; changed.
        total: [n, 1], weights of the whole rows, where they are known; else of the values alone.
        table: of the rows.
        vocab: tokens of a row.
    """
    has_top_k = ((table.top_k > 0) & (table.top_k < vocab)).unsqueeze(1)
    at = (table.top_k.unsqueeze(1) - 1).clamp(0, values.shape[1] - 1)
    least = torch.where(has_top_k, values.gather(1, at), -torch.inf)
    weights.masked_fill_(values < least, 0)
    # The shortest head whose mass reaches top_p: a token goes once those before it suffice.
    mass = weights.cumsum(-1)
    kept = mass[:, -1:] if total is None else torch.where(has_top_k, mass[:, -1:], total)
    wanted = kept.double() * table.top_p.unsqueeze(1)
    num_kept = ((mass - weights).double() < wanted).sum(-1, keepdim=True)
    last = values.gather(1, (num_kept - 1).clamp_(min=0))
    return torch.where(table.top_p.unsqueeze(1) < 1.0, torch.maximum(least, last), least)


def _weights(logits: torch.Tensor, largest: torch.Tensor, table: DrawTable) -> torch.Tensor:
    """Return each token's weight: int64, ``_UNIT`` for the likeliest, 0 below min_p."""
    # From the largest down: a low temperature then takes the others to nothing, and nothing to a difference
    # of infinities.
    distance = (logits - largest.clamp(-_LARGEST, _LARGEST)).double()
    weights = distance.div_(table.temperature.unsqueeze(1)).exp_().mul_(_UNIT).long()
    return weights.masked_fill_(weights < table.min_weight.unsqueeze(1), 0) if table.has_min_p else weights


def _pick(weights: torch.Tensor, table: DrawTable) -> torch.Tensor:
    """Return the place of the weight that each row's random number falls on."""
    mass = weights.cumsum(-1)
    total = mass[:, -1]
    point = (uniform(table.keys, table.positions) * total.double()).long()
    # Rounding may reach the end.
    point = torch.minimum(point, total - 1).unsqueeze(1)
    return torch.searchsorted(mass, point, right=True).squeeze(1).clamp_(max=weights.shape[1] - 1)
