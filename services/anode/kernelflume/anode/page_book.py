"""How many sequences hold each page, how full it is, and which page is taken next.

A page is free, idle (``BlockIndex``), or held. Idle pages count as free and are taken when no other is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kernelflume.anode.pages import PageAllocator
from kernelflume.core.errors import KvPoolExhaustedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.anode.block_index import BlockIndex

_MOST_AT_ONCE = 16
_POOL_PER_EVICTION = 64
"""When room is needed, up to this part of the pool is made free at once. Pages of one context are used, and
so evicted, one after the other, and often lie side by side: a gap of several lets the sequence that grows
into it stay contiguous, where single pages would scatter it."""


class PageBook:
    """Owned by the pool. Each call is exact or raises."""

    def __init__(self, num_pages: int, blocks: BlockIndex) -> None:
        self.allocator = PageAllocator(num_pages)
        self.blocks = blocks
        blocks.size_for(num_pages)
        self.num_tokens = 0
        """Tokens in pages that sequences hold; those of a shared page count once."""
        self._num_holders = [0] * num_pages
        self._num_filled = [0] * num_pages
        """Tokens of each held or idle page."""
        self._at_once = min(_MOST_AT_ONCE, num_pages // _POOL_PER_EVICTION)

    @property
    def num_pages(self) -> int:
        """Pages of the pool."""
        return self.allocator.num_pages

    @property
    def num_free(self) -> int:
        """Pages that no sequence holds: those that can be had."""
        return self.allocator.num_free + self.blocks.num_idle

    def num_holders(self, page: int) -> int:
        """Sequences that hold a page."""
        return self._num_holders[page]

    @property
    def holders(self) -> np.ndarray:
        """Sequences that hold each page: uint32 [pages]."""
        return np.array(self._num_holders, np.uint32)

    @property
    def free_pages(self) -> np.ndarray:
        """Empty pages, ascending: uint32."""
        gaps = [np.arange(start, end, dtype=np.uint32) for start, end in self.allocator.gaps]
        return np.concatenate(gaps) if gaps else np.empty(0, np.uint32)

    def num_filled(self, page: int) -> int:
        """Tokens of a page that is held or idle."""
        return self._num_filled[page]

    def is_writable(self, page: int) -> bool:
        """Tell whether the one that holds a page may add to it: nobody else does, and it has no name."""
        return self._num_holders[page] == 1 and not self.blocks.is_named(page)

    def allocate(self, num_pages: int, *, after: int | None = None) -> list[int]:
        """Take empty pages for one holder, contiguous as far as possible; idle ones only when needed.

        Raises:
            KvPoolExhaustedError: fewer can be had; nothing was changed.
        """
        if num_pages > self.num_free:
            raise KvPoolExhaustedError(f"{num_pages} pages are needed and {self.num_free} are free")
        lacking = num_pages - self.allocator.num_free
        if lacking > 0:
            self._free(self.blocks.evict(lacking, num_wanted=self._at_once))
        pages = self.allocator.allocate(num_pages, after=after)
        for page in pages:
            self._num_holders[page] = 1
        return pages

    def fill(self, page: int, num_tokens: int) -> None:
        """Set how many tokens a writable page has."""
        self.num_tokens += num_tokens - self._num_filled[page]
        self._num_filled[page] = num_tokens

    def hold(self, page: int) -> None:
        """Add a holder to a named page."""
        if not self._num_holders[page]:
            self.blocks.unpark(page)
            self.num_tokens += self._num_filled[page]
        self._num_holders[page] += 1

    def retract(self, page: int, num_left: int) -> None:
        """Let a holder have fewer tokens of a page, of which it is the last; with none left it lets go."""
        if self._num_holders[page] == 1:
            # What is forgotten may never have been written, so nobody must find it.
            self.blocks.unname(page)
            self.fill(page, num_left)
        if not num_left:
            self.release([page])

    def release(self, pages: Sequence[int]) -> None:
        """Take a holder from each page of one context, in its order; a named page without any is kept.

        So the end of a context is older than its beginning, and goes first.
        """
        freed = []
        for page in reversed(pages):
            self._num_holders[page] -= 1
            if self._num_holders[page]:
                continue
            self.num_tokens -= self._num_filled[page]
            if self.blocks.is_cache and self.blocks.is_named(page):
                self.blocks.park(page)
            else:
                self.blocks.unname(page)
                freed.append(page)
        self._free(freed)

    def expire(self) -> None:
        """Free idle pages whose time is over."""
        self._free(self.blocks.expire())

    def _free(self, pages: list[int]) -> None:
        self.allocator.free(pages)
        for page in pages:
            self._num_filled[page] = 0
