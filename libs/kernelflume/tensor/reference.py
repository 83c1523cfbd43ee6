"""The oracle: dense attention in float64, to check every kernel and every merge against."""

from __future__ import annotations

import torch

from kernelflume.tensor.partials import Partial


def dense_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float | None = None,
    mask: torch.Tensor | None = None,
) -> Partial:
    """Attend in float64, with grouped query heads.

    Args:
        query: [num_rows, num_query_heads, head_dim]
        key: [num_tokens, num_kv_heads, head_dim]
        value: [num_tokens, num_kv_heads, head_dim]
        scale: factor on the scores; head_dim ** -0.5 by default.
        mask: [num_rows, num_tokens] bool, True where a row sees a token; all by default.

    Returns:
        Output and lse in float64; a row that sees no token has output 0 and lse -inf.
    """
    group = query.shape[1] // key.shape[1]
    keys = key.double().repeat_interleave(group, dim=1)
    values = value.double().repeat_interleave(group, dim=1)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.einsum("rhd,thd->rht", query.double(), keys) * factor
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, :], -torch.inf)
    lse = scores.logsumexp(-1)
    shift = torch.where(lse == -torch.inf, torch.zeros_like(lse), lse)
    return Partial(torch.einsum("rht,thd->rhd", (scores - shift[..., None]).exp(), values), lse)


def causal_mask(num_rows: int, num_tokens: int) -> torch.Tensor:
    """Return [num_rows, num_tokens]: the last row sees all tokens, each row before it one fewer."""
    offset = num_tokens - num_rows
    return torch.arange(num_tokens)[None, :] <= torch.arange(num_rows)[:, None] + offset
