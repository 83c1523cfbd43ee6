"""Attention over a step's own new tokens, on the weight node (beyond paper section 5.1).

A row's query, key and value are here at the same time, so its attention over the tokens of this step needs
no attention node: a decode row sees itself, a prefill chunk sees itself causally. Attention nodes add what
they hold from earlier steps, and none waits for keys and values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernelflume.tensor.partials import Partial

if TYPE_CHECKING:
    from collections.abc import Sequence


class SelfAttention:
    """Self-partials of the rows of one step; made once a step, used for every layer."""

    def __init__(
        self, row_counts: Sequence[int], num_query_heads: int, num_kv_heads: int, head_dim: int
    ) -> None:
        """Plan the step.

        Args:
            row_counts: consecutive rows of each sequence; a decode row counts 1.
            num_query_heads: query heads.
            num_kv_heads: KV heads, a divisor of the query heads.
            head_dim: width of a head.
        """
        self._group = num_query_heads // num_kv_heads
        self._scale = head_dim**-0.5
        self._chunks: list[tuple[int, int]] = []
        start = 0
        for count in row_counts:
            if count > 1:
                self._chunks.append((start, start + count))
            start += count
        self._only_chunk = len(row_counts) == 1 and bool(self._chunks)

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Partial:
        """Return each row's partial over its sequence's rows up to itself.

        Args:
            query: [num_rows, num_query_heads, head_dim]
            key: [num_rows, num_kv_heads, head_dim]
            value: [num_rows, num_kv_heads, head_dim]
        """
        if self._only_chunk:
            return self._attend_chunk(query, key, value)
        keys, values = self._expand(key), self._expand(value)
        out = values.clone() if self._group == 1 else values
        lse = (query.float() * keys.float()).sum(-1).mul_(self._scale)
        for start, end in self._chunks:
            chunk = self._attend_chunk(query[start:end], key[start:end], value[start:end])
            out[start:end] = chunk.out
            lse[start:end] = chunk.lse
        return Partial(out, lse)

    def _expand(self, heads: torch.Tensor) -> torch.Tensor:
        """Repeat each KV head for its group: [rows, kv_heads, dim] -> [rows, query_heads, dim]."""
        return heads if self._group == 1 else heads.repeat_interleave(self._group, dim=1)

    def _attend_chunk(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Partial:
        queries, keys, values = (
            tensor.transpose(0, 1).unsqueeze(0)  # [1, heads, rows, head_dim]
            for tensor in (query, self._expand(key), self._expand(value))
        )
        out, lse = _causal_attention(queries, keys, values, self._scale)
        return Partial(out[0].transpose(0, 1).contiguous(), lse[0].transpose(0, 1).contiguous())


def _causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return output and lse of [1, heads, rows, head_dim] tensors by the fused kernel of where they lie."""
    if query.device.type == "cpu":
        out, lse = _FLASH_ON_CPU(query, key, value, 0.0, True, scale=scale)
        return out, lse
    if query.dtype in (torch.bfloat16, torch.float16):
        out, lse, *_ = _FLASH(query, key, value, 0.0, True, False, scale=scale)
        return out, lse
    # No fused kernel computes float32 at full precision and tells the lse; a chunk's scores are small.
    scores = query @ key.transpose(-1, -2) * scale
    rows = query.shape[-2]
    future = torch.ones(rows, rows, dtype=torch.bool, device=query.device).triu(1)
    lse = scores.masked_fill_(future, -torch.inf).logsumexp(-1)
    return (scores - lse.unsqueeze(-1)).exp_() @ value, lse


# The public forms of these return no lse.
_FLASH_ON_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default  # noqa: SLF001
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention.default  # noqa: SLF001
