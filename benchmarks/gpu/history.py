"""Keys and values of rows before the first step, in every process and on every side the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from benchmarks.gpu.workload import Workload

    from kernelflume.anode.gpu.device_pages import DevicePages


def row_history(workload: Workload, row: int, num_tokens: int, device: torch.device) -> torch.Tensor:
    """Return a row's ``num_tokens`` keys and values, drawn on ``device`` from the row's own seed.

    Bfloat16 [layers, tokens, 2, KV heads, head dim].
    """
    geometry = workload.geometry
    shape = (geometry.num_layers, num_tokens, 2, geometry.num_kv_heads, geometry.head_dim)
    generator = torch.Generator(device).manual_seed(1000 + row)
    return torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)


def store_tokens(pages: DevicePages, first_page: int, tokens: torch.Tensor) -> None:
    """File [layers, tokens, 2, KV heads, head dim] from the start of a page on, in the pages that follow."""
    slots = first_page * pages.page_tokens + np.arange(tokens.shape[1], dtype=np.int64)
    pages.store(slots, tokens.to(pages.pages.dtype))
