"""The memory that keys and values lie in, page by page, and what each sequence owns of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from kernelflume.anode.gpu.device_pages import DevicePages
from kernelflume.anode.host_pages import HostPages
from kernelflume.anode.page_list import PageList
from kernelflume.anode.pages import PageAllocator
from kernelflume.anode.ranges import HeldRanges
from kernelflume.core.errors import ConfigurationError, KvPoolExhaustedError

if TYPE_CHECKING:
    from kernelflume.core.geometry import KvGeometry


class Extent(NamedTuple):
    """Consecutive slots that hold consecutive tokens of one sequence."""

    slot: int
    num_tokens: int


@dataclass(slots=True)
class HeldSequence:
    """What one sequence owns. Changed by the pool alone."""

    pages: PageList = field(default_factory=PageList)
    extents: list[Extent] = field(default_factory=list)
    held: HeldRanges = field(default_factory=HeldRanges)

    @property
    def num_tokens(self) -> int:
        """Tokens held of the sequence."""
        return self.held.num_tokens


_HOST = torch.device("cpu")


class KvPool:
    """Pages of ``page_tokens`` slots, and who owns them. Owned by the step loop's thread."""

    def __init__(
        self, geometry: KvGeometry, *, page_tokens: int, num_bytes: int, device: torch.device = _HOST
    ) -> None:
        """Reserve the memory and fault it in, which takes about a second for 4 GiB of host memory.

        Args:
            geometry: shape of the model's keys and values.
            page_tokens: slots a page.
            num_bytes: upper bound of the pool's size.
            device: where the pages lie.

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
        self.device = device
        self.allocator = PageAllocator(num_pages)
        self.num_tokens = 0
        """Tokens held, over all sequences."""
        self.storage: HostPages | DevicePages = (
            HostPages(geometry, num_slots=num_pages * page_tokens)
            if device.type == "cpu"
            else DevicePages(geometry, page_tokens=page_tokens, num_pages=num_pages, device=device)
        )

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
            sequence.pages.extend(self.allocator.allocate(missing, after=last))
        self.num_tokens += num_tokens
        indices = np.arange(held, held + num_tokens)
        pages, offsets = indices // self.page_tokens, indices % self.page_tokens
        slots = sequence.pages.numbers[pages].astype(np.int64) * self.page_tokens + offsets
        self._extend(sequence.extents, slots)
        return slots

    def append_one(self, sequence: HeldSequence, position: int) -> int:
        """Give a sequence a slot for one token, as ``append`` does; return it.

        A decode step asks for one of each of its sequences, and most find room in their last page.

        Raises:
            KvPoolExhaustedError: no page is free; nothing was changed.
            LifecycleError: the position does not follow those held; nothing was changed.
        """
        page, offset = divmod(sequence.num_tokens, self.page_tokens)
        if page == len(sequence.pages):
            return int(self.append(sequence, position, 1)[0])
        sequence.held.append(position, 1)
        self.num_tokens += 1
        slot = sequence.pages[page] * self.page_tokens + offset
        self._extend_by_one(sequence.extents, slot)
        return slot

    def retract(self, sequence: HeldSequence) -> None:
        """Forget the token that was appended last; a page that becomes empty is free again."""
        sequence.held.retract()
        self.num_tokens -= 1
        slot, num_tokens = sequence.extents.pop()
        if num_tokens > 1:
            sequence.extents.append(Extent(slot, num_tokens - 1))
        if len(sequence.pages) > -(-sequence.num_tokens // self.page_tokens):
            self.allocator.free([sequence.pages.pop()])

    def store(self, slots: np.ndarray, rows: torch.Tensor) -> None:
        """Write keys and values.

        Args:
            slots: [num_tokens] int64
            rows: [num_layers, num_tokens, 2, num_kv_heads, head_dim] of the pool's dtype and device.
        """
        self.storage.store(slots, rows)

    def release(self, sequence: HeldSequence) -> None:
        """Take back every page of a sequence that nobody refers to any more."""
        self.allocator.free(list(sequence.pages))
        self.num_tokens -= sequence.num_tokens
        sequence.pages, sequence.extents, sequence.held = PageList(), [], HeldRanges()

    @staticmethod
    def _extend_by_one(extents: list[Extent], slot: int) -> None:
        if extents and extents[-1].slot + extents[-1].num_tokens == slot:
            extents[-1] = Extent(extents[-1].slot, extents[-1].num_tokens + 1)
        else:
            extents.append(Extent(slot, 1))

    @staticmethod
    def _extend(extents: list[Extent], slots: np.ndarray) -> None:
        breaks = np.flatnonzero(np.diff(slots) != 1) + 1
        for run in np.split(slots, breaks):
            first = int(run[0])
            if extents and extents[-1].slot + extents[-1].num_tokens == first:
                extents[-1] = Extent(extents[-1].slot, extents[-1].num_tokens + len(run))
            else:
                extents.append(Extent(first, len(run)))
