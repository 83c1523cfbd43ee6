"""One lane of the weight node: the device memory of a microbatch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from kernelflume.core.geometry import KvGeometry


@dataclass(frozen=True, slots=True)
class LaneBuffers:
    """Inputs, outputs and what travels. Fixed addresses, so that a graph may hold them."""

    max_rows: int
    token_ids: Tensor
    """[max_rows] int64: the step's input; the step writes the tokens it chose here."""
    positions: Tensor
    """[max_rows] int64; each step moves them on."""
    query: Tensor
    """[max_rows, query heads, head dim], registered."""
    own_keys_values: Tensor
    """[max_rows, 2, KV heads, head dim] of the present layer, in the model's dtype."""
    keys_values: Tensor
    """[layers, max_rows, 2, KV heads, head dim] in the pool's dtype, registered."""
    attention: Tensor
    """[max_rows, query heads, head dim]: the merged result of the present layer."""

    @classmethod
    def allocate(cls, geometry: KvGeometry, max_rows: int, device: torch.device) -> LaneBuffers:
        """Return zeroed buffers."""
        dtype, kv_dtype = getattr(torch, geometry.dtype), getattr(torch, geometry.kv_dtype)
        heads = (geometry.num_query_heads, geometry.head_dim)
        kv_heads = (2, geometry.num_kv_heads, geometry.head_dim)

        def zeros(*shape: int, kind: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=kind, device=device)

        return cls(
            max_rows=max_rows,
            token_ids=zeros(max_rows, kind=torch.int64),
            positions=zeros(max_rows, kind=torch.int64),
            query=zeros(max_rows, *heads, kind=dtype),
            own_keys_values=zeros(max_rows, *kv_heads, kind=dtype),
            keys_values=zeros(geometry.num_layers, max_rows, *kv_heads, kind=kv_dtype),
            attention=zeros(max_rows, *heads, kind=dtype),
        )
