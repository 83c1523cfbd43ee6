"""Which page holds a block of which name, and which of those pages no sequence refers to any more.

Pages without sequences are idle: they stay until their room is needed, the one used longest ago first, or
until their time is over. Pinned ones stay while there are others, and their time is another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kernelflume.anode.idle_pages import IdlePages
from kernelflume.anode.pin_counts import PinCounts
from kernelflume.core.retention import PIN_S

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

    def __init__(
        self, clock: Clock, *, is_cache: bool = True, ttl_s: float = 0.0, pinned_share: float = 0.0
    ) -> None:
        """Begin without names.

        Args:
            clock: tells how long ago a page was used.
            is_cache: keep pages without sequences; else a name ends with the last sequence that holds it.
            ttl_s: seconds that an idle page stays after its last use; 0 is as long as there is room.
            pinned_share: most of the pool's pages that are pinned.
        """
        self._clock = clock
        self.is_cache = is_cache
        self._ttl_s = ttl_s
        self._pinned_share = pinned_share if is_cache else 0.0
        self.max_pinned = 0
        """Most pages that are pinned."""
        self.pin_counts = PinCounts()
        self._pages: dict[bytes, int] = {}
        self._blocks: dict[int, Block] = {}
        self._idle = IdlePages(clock)
        self._pinned: set[int] = set()
        """Pinned pages, held and idle."""
        self.num_idle_tokens = 0
        """Tokens of idle pages."""
        self.num_evicted = 0
        """Idle pages that were dropped because their room was needed."""
        self.num_expired = 0
        """Idle pages whose time was over."""

    def size_for(self, num_pages: int) -> None:
        """Bound pins for a pool of so many pages."""
        self.max_pinned = int(self._pinned_share * num_pages)

    @property
    def num_idle(self) -> int:
        """Pages that bear a name and are held by nobody."""
        return len(self._idle)

    @property
    def idle_pages(self) -> tuple[int, ...]:
        """Idle pages in the order in which they would be dropped."""
        return self._idle.pages

    @property
    def num_pinned(self) -> int:
        """Pages with a pin, held or idle."""
        return len(self._pinned)

    @property
    def pinned_pages(self) -> tuple[int, ...]:
        """Those pages, ascending."""
        return tuple(sorted(self._pinned))

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
        """Take a held page's name away, if it has one, and with it its pin."""
        block = self._blocks.pop(page, None)
        if block is not None:
            del self._pages[block.key]
            self._pinned.discard(page)

    def pin(self, page: int) -> bool:
        """Pin a named page, as one used now; False where the share is full of pins of pages that are held.

        Where it is full the pin that was not used for the longest time ends: sessions that are over must not
        keep a share for a day that others could use.
        """
        if page not in self._pinned:
            if len(self._pinned) >= self.max_pinned:
                if not self.max_pinned or not self._idle.num_pinned:
                    self.pin_counts.num_refused += 1
                    return False
                self._pinned.discard(self._idle.unpin_oldest())
                self.pin_counts.num_displaced += 1
            self._pinned.add(page)
            self.pin_counts.num_taken += 1
        self._use_if_idle(page)
        return True

    def unpin(self, page: int) -> None:
        """End a page's pin, if it has one, because nobody wants it any more."""
        if page in self._pinned:
            self._pinned.discard(page)
            self.pin_counts.num_given_up += 1
            self._use_if_idle(page)

    def park(self, page: int) -> None:
        """Keep a named page that was let go by its last sequence, as the one used last."""
        self._idle.use(page, is_pinned=page in self._pinned)
        self.num_idle_tokens += self._blocks[page].num_tokens

    def unpark(self, page: int) -> None:
        """A sequence holds an idle page again."""
        self._idle.discard(page)
        self.num_idle_tokens -= self._blocks[page].num_tokens

    def touch(self, pages: Sequence[int]) -> None:
        """Count pages of one context, in order, as used now: its end is older than its beginning."""
        for page in reversed(pages):
            self._use_if_idle(page)

    def evict(self, num_needed: int, *, num_wanted: int = 0) -> list[int]:
        """Forget the idle pages used longest ago, those with a pin after all others.

        Args:
            num_needed: pages that must go, if there are so many.
            num_wanted: pages that should, as far as they have no pin.

        Returns:
            The pages.
        """
        num_plain = len(self._idle) - self._idle.num_pinned
        num_pages = max(min(num_needed, len(self._idle)), min(num_wanted, num_plain))
        evicted = [self._forget_oldest() for _ in range(num_pages)]
        self.num_evicted += len(evicted)
        return evicted

    def expire(self) -> list[int]:
        """End pins whose time is over, and forget the idle pages whose time is; return these."""
        now = self._clock.now()
        while (used_s := self._idle.oldest_pin_s()) is not None and used_s <= now - PIN_S:
            self._pinned.discard(self._idle.unpin_oldest())
            self.pin_counts.num_expired += 1
        expired: list[int] = []
        if self._ttl_s:
            while (used_s := self._idle.oldest_plain_s()) is not None and used_s <= now - self._ttl_s:
                expired.append(self._forget_oldest())
            self.num_expired += len(expired)
        return expired

    def _use_if_idle(self, page: int) -> None:
        if page in self._idle:
            self._idle.use(page, is_pinned=page in self._pinned)

    def _forget_oldest(self) -> int:
        page = self._idle.pop_oldest()
        self.num_idle_tokens -= self._blocks[page].num_tokens
        if page in self._pinned:
            self.pin_counts.num_yielded += 1
        self.unname(page)
        return page
