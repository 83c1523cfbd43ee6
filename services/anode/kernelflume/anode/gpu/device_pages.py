"""Keys and values in device memory, page by page, in the layout that FlashInfer calls NHD."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import numpy as np

    from kernelflume.core.geometry import KvGeometry


class DevicePages:
    """``pages``: [num_layers, num_pages, 2, page_tokens, num_kv_heads, head_dim]; keys at 0, values at 1."""

    def __init__(
        self, geometry: KvGeometry, *, page_tokens: int, num_pages: int, device: torch.device
    ) -> None:
        """Allocate the pages."""
        self.geometry = geometry
        self.page_tokens = page_tokens
        self.num_pages = num_pages
        shape = (geometry.num_layers, num_pages, 2, page_tokens, geometry.num_kv_heads, geometry.head_dim)
        self.pages = torch.zeros(shape, dtype=getattr(torch, geometry.kv_dtype), device=device)
        for num_tokens in {1, page_tokens - 1} - {0}:
            # A kernel is loaded when it first runs, and that waits for the device: not while a step runs.
            self.copy(0, 0, num_tokens)

    @property
    def layer_bytes(self) -> int:
        """Bytes from one layer's pages to the next layer's."""
        return self.pages.stride(0) * self.pages.element_size()

    def store(self, slots: np.ndarray, rows: torch.Tensor) -> None:
        """Write keys and values, in stream order; see ``KvPool.store``."""
        where = torch.from_numpy(slots).to(self.pages.device)
        pages, offsets = where // self.page_tokens, where % self.page_tokens
        # Index arrays apart from each other put the tokens first: [num_tokens, layers, 2, heads, dim].
        _bits(self.pages)[:, pages, :, offsets] = _bits(rows).transpose(0, 1)

    def copy(self, slot: int, to_slot: int, num_tokens: int) -> None:
        """Copy the first tokens of one page to another, in stream order; both slots are a page's first."""
        pages = _bits(self.pages)
        pages[:, to_slot // self.page_tokens, :, :num_tokens] = pages[
            :, slot // self.page_tokens, :, :num_tokens
        ]

    def gather(self, layer: int, pages: torch.Tensor) -> torch.Tensor:
        """Copy the pages that int64 [num] names: [num, 2, page_tokens, num_kv_heads, head_dim]."""
        return _bits(self.pages)[layer, pages].view(self.pages.dtype)


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def _bits(numbers: torch.Tensor) -> torch.Tensor:
    """View numbers as integers of their size: torch does not index every format of 8 bits."""
    return numbers.view(_INTEGERS[numbers.element_size()])
