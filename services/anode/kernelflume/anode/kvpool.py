"""The memory that keys and values lie in, page by page, and what each sequence owns of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from kernelflume.anode.block_index import BlockIndex
from kernelflume.anode.gpu.device_pages import DevicePages
from kernelflume.anode.host_pages import HostPages
from kernelflume.anode.page_book import PageBook
from kernelflume.anode.page_list import PageList
from kernelflume.anode.ranges import HeldRanges
from kernelflume.core.errors import ConfigurationError, KvPoolExhaustedError, LifecycleError
from kernelflume.core.retention import AS_IT_IS, Retention
from kernelflume.runtime.clock import MonotonicClock
from kernelflume.transport.memory import settle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.anode.block_index import Block
    from kernelflume.core.geometry import KvGeometry
    from kernelflume.core.retention import Pinning


class Extent(NamedTuple):
    """Consecutive slots that hold consecutive tokens of one sequence."""

    slot: int
    num_tokens: int


@dataclass(slots=True)
class HeldSequence:
    """What one sequence holds. Changed by the pool alone."""

    pages: PageList = field(default_factory=PageList)
    """All full but the last; others may hold them too."""
    extents: list[Extent] = field(default_factory=list)
    held: HeldRanges = field(default_factory=HeldRanges)

    @property
    def num_tokens(self) -> int:
        """Tokens held of the sequence."""
        return self.held.num_tokens


_HOST = torch.device("cpu")


class KvPool:
    """Pages of ``page_tokens`` slots, and who holds them. Owned by the step loop's thread."""

    def __init__(
        self,
        geometry: KvGeometry,
        *,
        page_tokens: int,
        num_bytes: int,
        device: torch.device = _HOST,
        blocks: BlockIndex | None = None,
    ) -> None:
        """Reserve the memory and fault it in, which takes about a second for 4 GiB of host memory.

        Args:
            geometry: shape of the model's keys and values.
            page_tokens: slots a page.
            num_bytes: upper bound of the pool's size.
            device: where the pages lie.
            blocks: names of pages; by default kept without a time to live.

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
        self.blocks = blocks if blocks is not None else BlockIndex(MonotonicClock())
        self.book = PageBook(num_pages, self.blocks)
        self.storage: HostPages | DevicePages = (
            HostPages(geometry, num_slots=num_pages * page_tokens)
            if device.type == "cpu"
            else DevicePages(geometry, page_tokens=page_tokens, num_pages=num_pages, device=device)
        )

    @property
    def num_pages(self) -> int:
        """Pages of the pool."""
        return self.book.num_pages

    @property
    def num_free_pages(self) -> int:
        """Pages that no sequence holds, those included that are kept to be found."""
        return self.book.num_free

    @property
    def num_tokens(self) -> int:
        """Tokens that sequences hold; those of a page that several share count once."""
        return self.book.num_tokens

    @property
    def capacity_tokens(self) -> int:
        """Slots of all pages."""
        return self.num_pages * self.page_tokens

    def append(self, sequence: HeldSequence, start: int, num_tokens: int) -> np.ndarray:
        """Give a sequence slots for positions [start, start + num_tokens).

        A last page that others hold too is copied first, which takes one page more.

        Returns:
            [num_tokens] int64, the slot of each token, for ``store``.

        Raises:
            KvPoolExhaustedError: too few pages are free; nothing was changed.
            LifecycleError: the positions do not follow those held; nothing was changed.
        """
        held = sequence.num_tokens
        missing = -(-(held + num_tokens) // self.page_tokens) - len(sequence.pages)
        # None of a sequence's own pages is idle, so that making room takes none of them.
        num_needed = missing + self.must_copy(sequence)
        if num_needed > self.book.num_free:
            raise KvPoolExhaustedError(f"{num_needed} pages are needed and {self.book.num_free} are free")
        sequence.held.append(start, num_tokens)
        if held % self.page_tokens:
            self._own_last(sequence, held % self.page_tokens)
        if missing > 0:
            last = sequence.pages[-1] if sequence.pages else None
            sequence.pages.extend(self.book.allocate(missing, after=last))
        self._fill_from(sequence, held)
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
        index, offset = divmod(sequence.num_tokens, self.page_tokens)
        if index == len(sequence.pages) or not self.book.is_writable(sequence.pages[index]):
            return int(self.append(sequence, position, 1)[0])
        sequence.held.append(position, 1)
        page = sequence.pages[index]
        self.book.fill(page, offset + 1)
        slot = page * self.page_tokens + offset
        self._extend_by_one(sequence.extents, slot)
        return slot

    def must_copy(self, sequence: HeldSequence) -> bool:
        """Tell whether an append copies the last page first: it is not full, and others hold it too."""
        return bool(sequence.num_tokens % self.page_tokens) and self.book.num_holders(sequence.pages[-1]) > 1

    def own_last(self, sequence: HeldSequence) -> None:
        """Copy the last page where an append would, so that where the sequence lies does not change with it.

        Raises:
            KvPoolExhaustedError: no page is free; nothing was changed.
        """
        if self.must_copy(sequence):
            self._own_last(sequence, sequence.num_tokens % self.page_tokens)

    def retract(self, sequence: HeldSequence) -> None:
        """Forget the token that was appended last; a page that becomes empty is free again."""
        sequence.held.retract()
        self._trim(sequence.extents, 1)
        num_left = sequence.num_tokens % self.page_tokens
        self.book.retract(sequence.pages[-1], num_left)
        if not num_left:
            sequence.pages.pop()

    def share(self, sequence: HeldSequence, blocks: Sequence[Block], pinning: Pinning = AS_IT_IS) -> int:
        """Let a sequence hold blocks that are here, as if it had appended them; pin them or not.

        Returns:
            How many it holds now, from the first on: it ends before one that is not here.

        Raises:
            LifecycleError: they are no blocks of a context that follow those held; nothing was changed.
        """
        end, num_held = sequence.held.end, sequence.num_tokens
        for block in blocks:
            self._check_block(block)
            if block.start < end or num_held % self.page_tokens:
                raise LifecycleError(f"the block at {block.start} cannot follow {end} of {num_held} tokens")
            end = block.start + block.num_tokens
            num_held += block.num_tokens
        pages: list[int] = []
        for block in blocks:
            page = self.blocks.find(block.key)
            if page is None or self.blocks.block_of(page) != block:
                break
            self.book.hold(page)
            sequence.held.append(block.start, block.num_tokens)
            first = page * self.page_tokens
            self._extend(sequence.extents, np.arange(first, first + block.num_tokens))
            pages.append(page)
        sequence.pages.extend(pages)
        self._pin(pages, pinning)
        return len(pages)

    def publish(self, sequence: HeldSequence, blocks: Sequence[Block], pinning: Pinning = AS_IT_IS) -> None:
        """Name pages of a sequence, so that others find them; pin them or not.

        Blocks that it does not hold as whole pages, or as all of its last page, are passed over, and so are
        those whose name another page has.

        Raises:
            LifecycleError: one is no block; nothing was changed.
        """
        for block in blocks:
            self._check_block(block)
        named: list[int] = []
        for block in blocks:
            index = sequence.held.index(block.start, block.num_tokens)
            if index is None or index % self.page_tokens:
                continue
            if block.num_tokens != min(self.page_tokens, sequence.num_tokens - index):
                continue
            page = sequence.pages[index // self.page_tokens]
            if not self.blocks.name(page, block):
                same = self.blocks.find(block.key)
                page = page if same is None else same
            named.append(page)
        self._pin(named, pinning)
        self.blocks.touch(named)

    def store(self, slots: np.ndarray, rows: torch.Tensor) -> None:
        """Write keys and values.

        Args:
            slots: [num_tokens] int64
            rows: [num_layers, num_tokens, 2, num_kv_heads, head_dim] of the pool's dtype and device.
        """
        self.storage.store(slots, rows)

    def release(self, sequence: HeldSequence) -> None:
        """Take back what a sequence holds; named pages are kept while there is room."""
        self.book.release(list(sequence.pages))
        sequence.pages, sequence.extents, sequence.held = PageList(), [], HeldRanges()

    def _pin(self, pages: Sequence[int], pinning: Pinning) -> None:
        """Pin named pages of a context, from its beginning on, or end their pins."""
        if pinning.retention is Retention.UNCHANGED:
            return
        for page in pages:
            block = self.blocks.block_of(page)
            if block is None or block.start + self.page_tokens > pinning.num_tokens:
                continue
            if block.num_tokens < self.page_tokens:
                continue
            if pinning.retention is Retention.IN_MEMORY:
                self.blocks.unpin(page)
            elif not self.blocks.pin(page):
                return  # of a context the beginning is worth most

    def _check_block(self, block: Block) -> None:
        if block.start % self.page_tokens or not 0 < block.num_tokens <= self.page_tokens:
            raise LifecycleError(
                f"{block.num_tokens} tokens at {block.start} are no block of {self.page_tokens} tokens"
            )

    def _own_last(self, sequence: HeldSequence, num_tokens: int) -> None:
        """Make the last page one that may be written to; the sequence has ``num_tokens`` in it."""
        page = sequence.pages[-1]
        if self.book.num_holders(page) == 1:
            self.blocks.unname(page)
            return
        (copy,) = self.book.allocate(1, after=page)
        first, copied = page * self.page_tokens, copy * self.page_tokens
        self.storage.copy(first, copied, num_tokens)
        settle(self.device)  # what is added to the copy may be written from another stream
        sequence.pages.pop()
        sequence.pages.extend([copy])
        self.book.release([page])
        self._trim(sequence.extents, num_tokens)
        self._extend(sequence.extents, np.arange(copied, copied + num_tokens))

    def _fill_from(self, sequence: HeldSequence, index: int) -> None:
        """Count the sequence's tokens from one on in the pages where they lie."""
        for number in range(index // self.page_tokens, len(sequence.pages)):
            num_filled = min(self.page_tokens, sequence.num_tokens - number * self.page_tokens)
            self.book.fill(sequence.pages[number], num_filled)

    @staticmethod
    def _trim(extents: list[Extent], num_tokens: int) -> None:
        """Take tokens off the end, which lie in one page and so in the last extent."""
        slot, num_held = extents.pop()
        if num_held > num_tokens:
            extents.append(Extent(slot, num_held - num_tokens))

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
