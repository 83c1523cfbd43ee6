"""The memory that keys and values lie in, page by page, and what each sequence owns of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from kernelflume.anode.pages import PageAllocator
from kernelflume.anode.ranges import HeldRanges
from kernelflume.core.errors import ConfigurationError, KvPoolExhaustedError
from kernelflume.core.geometry import DTYPE_BYTES
from kernelflume.transport.memory import allocate

if TYPE_CHECKING:
    from kernelflume.core.geometry import KvGeometry


class Extent(NamedTuple):
    """Consecutive slots that hold consecutive tokens of one sequence."""

    slot: int
    num_tokens: int


@dataclass(slots=True)
class HeldSequence:
    """What one sequence owns. Changed by the pool alone."""

    pages: list[int] = field(default_factory=list)
    extents: list[Extent] = field(default_factory=list)
    held: HeldRanges = field(default_factory=HeldRanges)

    @property
    def num_tokens(self) -> int:
        """Tokens held of the sequence."""
        return self.held.num_tokens


class KvPool:
    """Pages of ``page_tokens`` slots in one array, so laid out that a head's tokens follow each other.

    ``bits``: [num_layers, 2, num_kv_heads, num_slots, head_dim], index 1 telling keys from values. Owned by
    the step loop's thread.
    """

    def __init__(self, geometry: KvGeometry, *, page_tokens: int, num_bytes: int) -> None:
        """Reserve the memory and fault it in, which takes about a second for 4 GiB.

        Args:
            geometry: shape of the model's keys and values.
            page_tokens: slots a page.
            num_bytes: upper bound of the pool's size.

        Raises:
            ConfigurationError: not one page fits.
        """
        page_bytes = page_tokens * geometry.token_bytes
        num_pages = num_bytes // page_bytes
        if num_pages < 1:
            raise ConfigurationError(
                f"memory: {num_bytes} bytes hold no page of {page_tokens} tokens, which takes {page_bytes}"
            )
        self.geometry = geometry
        self.page_tokens = page_tokens
        self.num_bytes = num_pages * page_bytes
        self.allocator = PageAllocator(num_pages)
        self.num_tokens = 0
        """Tokens held, over all sequences."""
        shape = (geometry.num_layers, 2, geometry.num_kv_heads, num_pages * page_tokens, geometry.head_dim)
        self.bits = allocate(self.num_bytes).view(bits_dtype(geometry)).reshape(shape)
        dtype = getattr(torch, geometry.kv_dtype)
        # Layer and kind in one dimension: [num_layers * 2, 1, num_kv_heads, num_slots, head_dim]
        self._layers = torch.from_numpy(self.bits).view(dtype).view(-1, 1, *shape[2:])

    @property
    def capacity_tokens(self) -> int:
        """Slots of all pages."""
        return self.allocator.num_pages * self.page_tokens

    def append(self, sequence: HeldSequence, start: int, num_tokens: int) -> np.ndarray:
        """Give a sequence slots for positions [start, start + num_tokens).

        Returns:
            [num_tokens] int64, the slot of each token, for ``store``.

        Raises:
            KvPoolExhaustedError: too few pages are free; nothing was changed.
            LifecycleError: the positions do not follow those held; nothing was changed.
        """
        held = sequence.num_tokens
        missing = -(-(held + num_tokens) // self.page_tokens) - len(sequence.pages)
        if missing > self.allocator.num_free:
            raise KvPoolExhaustedError(f"{missing} pages are needed and {self.allocator.num_free} are free")
        sequence.held.append(start, num_tokens)
        if missing > 0:
            last = sequence.pages[-1] if sequence.pages else None
            sequence.pages += self.allocator.allocate(missing, after=last)
        self.num_tokens += num_tokens
        indices = np.arange(held, held + num_tokens)
        slots = (
            np.asarray(sequence.pages)[indices // self.page_tokens] * self.page_tokens
            + indices % self.page_tokens
        )
        self._extend(sequence.extents, slots)
        return slots

    def store(self, slots: np.ndarray, rows: np.ndarray) -> None:
        """Write keys and values.

        Args:
            slots: [num_tokens] int64
            rows: [num_layers, num_tokens, 2, num_kv_heads, head_dim], bits of the pool's dtype
        """
        self.bits[:, :, :, slots] = rows.transpose(0, 2, 3, 1, 4)

    def release(self, sequence: HeldSequence) -> None:
        """Take back every page of a sequence that nobody refers to any more."""
        self.allocator.free(sequence.pages)
        self.num_tokens -= sequence.num_tokens
        sequence.pages, sequence.extents, sequence.held = [], [], HeldRanges()

    def view(self, extent: Extent) -> tuple[torch.Tensor, ...]:
        """Return keys and values of all layers, no copy: key of layer l at 2 l, value at 2 l + 1.

        Each is [1, num_kv_heads, num_tokens, head_dim].
        """
        return self._layers.narrow(3, extent.slot, extent.num_tokens).unbind(0)

    @staticmethod
    def _extend(extents: list[Extent], slots: np.ndarray) -> None:
        breaks = np.flatnonzero(np.diff(slots) != 1) + 1
        for run in np.split(slots, breaks):
            first = int(run[0])
            if extents and extents[-1].slot + extents[-1].num_tokens == first:
                extents[-1] = Extent(extents[-1].slot, extents[-1].num_tokens + len(run))
            else:
                extents.append(Extent(first, len(run)))


def bits_dtype(geometry: KvGeometry) -> np.dtype[np.signedinteger[Any]]:
    """Return the integer that carries an element's bits: numpy has no bfloat16, and a copy needs none."""
    return np.dtype(f"i{DTYPE_BYTES[geometry.kv_dtype]}")
