"""Which page holds a block of which name, and which of those pages no sequence refers to any more.

Pages without sequences are idle: they stay until their room is needed, the one used longest ago first, or
until their time is over.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.runtime.clock import Clock


class Block(NamedTuple):
    """An aligned piece of a context, at most a page long; ``core.blocks`` makes the key."""

    key: bytes
    start: int
    """Its first token's position."""
    num_tokens: int


class BlockIndex:
    """Names of pages, one a page and one page a name. Owned by the pool's ``PageBook``."""

    def __init__(self, clock: Clock, *, is_cache: bool = True, ttl_s: float = 0.0) -> None:
        """Begin without names.

        Args:
            clock: tells how long ago a page was used.
            is_cache: keep pages without sequences; else a name ends with the last sequence that holds it.
            ttl_s: seconds that an idle page stays after its last use; 0 is as long as there is room.
        """
        self._clock = clock
        self.is_cache = is_cache
        self._ttl_s = ttl_s
        self._pages: dict[bytes, int] = {}
        self._blocks: dict[int, Block] = {}
        self._idle: OrderedDict[int, float] = OrderedDict()
        """Idle pages with the time of their last use, the one used longest ago first."""
        self.num_idle_tokens = 0
        """Tokens of idle pages."""
        self.num_evicted = 0
        """Idle pages that were dropped because their room was needed."""
        self.num_expired = 0
        """Idle pages whose time was over."""

    @property
    def num_idle(self) -> int:
        """Pages that bear a name and are held by nobody."""
        return len(self._idle)

    @property
    def idle_pages(self) -> tuple[int, ...]:
        """Idle pages, the one used longest ago first."""
        return tuple(self._idle)

    def find(self, key: bytes) -> int | None:
        """Return the page of a name, or None."""
        return self._pages.get(key)

    def block_of(self, page: int) -> Block | None:
        """Return what a page is named as, or None."""
        return self._blocks.get(page)

    def is_named(self, page: int) -> bool:
        """Tell whether a page has a name, so that it must not be written to."""
        return page in self._blocks

    def name(self, page: int, block: Block) -> bool:
        """Name a page; False, and nothing changes, where it has a name or the name has a page."""
        if page in self._blocks or block.key in self._pages:
            return False
        self._blocks[page] = block
        self._pages[block.key] = page
        return True

    def unname(self, page: int) -> None:
        """Take a held page's name away, if it has one."""
        block = self._blocks.pop(page, None)
        if block is not None:
            del self._pages[block.key]

    def park(self, page: int) -> None:
        """Keep a named page that was let go by its last sequence, as the one used last."""
        self._idle[page] = self._clock.now()
        self.num_idle_tokens += self._blocks[page].num_tokens

    def unpark(self, page: int) -> None:
        """A sequence holds an idle page again."""
        del self._idle[page]
        self.num_idle_tokens -= self._blocks[page].num_tokens

    def touch(self, pages: Sequence[int]) -> None:
        """Count pages of one context, in order, as used now: its end is older than its beginning."""
        now = self._clock.now()
        for page in reversed(pages):
            if page in self._idle:
                self._idle[page] = now
                self._idle.move_to_end(page)

    def evict(self, num_pages: int) -> list[int]:
        """Forget the idle pages used longest ago, ``num_pages`` at most; return them."""
        evicted = [self._forget_oldest() for _ in range(min(num_pages, len(self._idle)))]
        self.num_evicted += len(evicted)
        return evicted

    def expire(self) -> list[int]:
        """Forget the idle pages whose time is over; return them."""
        expired: list[int] = []
        if self._ttl_s:
            over = self._clock.now() - self._ttl_s
            while self._idle and next(iter(self._idle.values())) <= over:
                expired.append(self._forget_oldest())
            self.num_expired += len(expired)
        return expired

    def _forget_oldest(self) -> int:
        page, _ = self._idle.popitem(last=False)
        self.num_idle_tokens -= self._blocks[page].num_tokens
        self.unname(page)
        return page
