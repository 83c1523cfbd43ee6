"""Keys and values in host memory, in the layout that torch's CPU attention reads without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from kernelflume.core.geometry import KV_DTYPE_BYTES
from kernelflume.transport.memory import allocate

if TYPE_CHECKING:
    from kernelflume.anode.kvpool import Extent
    from kernelflume.core.geometry import KvGeometry


class HostPages:
    """All slots of a pool in one array, so laid out that a head's tokens follow each other.

    ``bits``: [num_layers, 2, num_kv_heads, num_slots, head_dim], index 1 telling keys from values, as the
    integers that carry an element's bits: numpy has no bfloat16, and a copy needs none.
    """

    def __init__(self, geometry: KvGeometry, *, num_slots: int) -> None:
        """Reserve the memory and fault it in."""
        shape = (geometry.num_layers, 2, geometry.num_kv_heads, num_slots, geometry.head_dim)
        self._integer = np.dtype(f"i{KV_DTYPE_BYTES[geometry.kv_dtype]}")
        self.bits = allocate(num_slots * geometry.token_bytes).view(self._integer).reshape(shape)
        dtype = getattr(torch, geometry.kv_dtype)
        # Layer and kind in one dimension: [num_layers * 2, 1, num_kv_heads, num_slots, head_dim]
        self._layers = torch.from_numpy(self.bits).view(dtype).view(-1, 1, *shape[2:])

    def store(self, slots: np.ndarray, rows: torch.Tensor) -> None:
        """Write keys and values; see ``KvPool.store``."""
        bits = rows.view(torch.from_numpy(self.bits[:0]).dtype).numpy()
        self.bits[:, :, :, slots] = bits.transpose(0, 2, 3, 1, 4)

    def copy(self, slot: int, to_slot: int, num_tokens: int) -> None:
        """Copy tokens of one page to another: those from ``slot`` on to those from ``to_slot`` on."""
        self.bits[:, :, :, to_slot : to_slot + num_tokens] = self.bits[:, :, :, slot : slot + num_tokens]

    def view(self, extent: Extent) -> tuple[torch.Tensor, ...]:
        """Return keys and values of all layers, no copy: key of layer l at 2 l, value at 2 l + 1.

        Each is [1, num_kv_heads, num_tokens, head_dim].
        """
        return self._layers.narrow(3, extent.slot, extent.num_tokens).unbind(0)
