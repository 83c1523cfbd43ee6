"""Keys and values in device memory, page by page, in the layout that FlashInfer calls NHD."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from kernelflume.core.geometry import KvGeometry


class DevicePool:
    """[num_layers, num_pages, 2, page_tokens, num_kv_heads, head_dim], index 1 of kind telling values from keys."""

    def __init__(
        self, geometry: KvGeometry, *, page_tokens: int, num_bytes: int, device: torch.device
    ) -> None:
        """Allocate the pages.

        Raises:
            ConfigurationError: not one page fits into ``num_bytes``.
        """
        page_bytes = page_tokens * geometry.token_bytes
        self.num_pages = num_bytes // page_bytes
        if self.num_pages < 1:
            raise ConfigurationError(
                f"memory: {num_bytes} bytes hold no page of {page_tokens} tokens, which takes {page_bytes}"
            )
        self.geometry = geometry
        self.page_tokens = page_tokens
        shape = (
            geometry.num_layers,
            self.num_pages,
            2,
            page_tokens,
            geometry.num_kv_heads,
            geometry.head_dim,
        )
        dtype = getattr(torch, geometry.kv_dtype)
        self.pages = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def layer_bytes(self) -> int:
        """Bytes from one layer's pages to the next layer's."""
        return self.pages.stride(0) * self.pages.element_size()
