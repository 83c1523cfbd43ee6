"""Partial attention results and their exact merge (paper sections 3.2 and 5.1).

A partial is the normalised output over some set of tokens and the natural logarithm of its softmax
denominator: with the paper's (o, m, l), lse = m + ln l. Merging is permutation- and split-invariant up to
rounding. A partial over no token has lse = -inf and counts for nothing, whatever its output holds.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Partial(NamedTuple):
    """One node's share of the attention of some rows."""

    out: torch.Tensor
    """[num_rows, num_heads, head_dim]"""
    lse: torch.Tensor
    """[num_rows, num_heads] float32, natural logarithm"""


def merge(outs: torch.Tensor, lses: torch.Tensor) -> Partial:
    """Merge partials over disjoint sets of tokens.

    Args:
        outs: [num_partials, num_rows, num_heads, head_dim]
        lses: [num_partials, num_rows, num_heads] float32; -inf where a partial holds no token of a row

    Returns:
        The partial over the union. A row that no partial covers has output 0 and lse -inf.
    """
    highest = lses.amax(0)  # [num_rows, num_heads]
    # exp(-inf - -inf) is nan; a row without tokens keeps weight 0 instead.
    shift = torch.where(highest == -torch.inf, torch.zeros_like(highest), highest)
    weights = (lses - shift).exp_()  # [num_partials, num_rows, num_heads]
    total = weights.sum(0)
    shares = weights / total.clamp_min(torch.finfo(torch.float32).tiny)
    # An absent partial's output may be anything, nan included: select before multiplying.
    present = torch.where(
        (lses == -torch.inf).unsqueeze(-1), torch.zeros((), dtype=outs.dtype, device=outs.device), outs
    )
    out = (present * shares.unsqueeze(-1)).sum(0).to(outs.dtype)
    return Partial(out, total.log() + shift)


def merge_into(
    out: torch.Tensor, lse: torch.Tensor, other_out: torch.Tensor, other_lse: torch.Tensor
) -> None:
    """Merge a second partial into a first one in place; both must hold at least one token in every row.

    The hot path of a decode step: two partials, no absent rows, no temporaries of the outputs' size beyond
    one.

    Args:
        out: [num_rows, num_heads, head_dim], changed in place.
        lse: [num_rows, num_heads] float32, changed in place.
        other_out: [num_rows, num_heads, head_dim]
        other_lse: [num_rows, num_heads] float32
    """
    # The share of the second is sigmoid(lse2 - lse1): stable at any distance.
    share = torch.sigmoid(other_lse - lse).unsqueeze(-1).to(out.dtype)
    out.lerp_(other_out, share)
    torch.logaddexp(lse, other_lse, out=lse)
