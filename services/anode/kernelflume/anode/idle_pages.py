"""The order in which pages that no sequence holds are dropped: by last use, with a pin after all without."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kernelflume.runtime.clock import Clock


class _Use(NamedTuple):
    """When a page was used last."""

    number: int
    """Counts uses, as several may have one time."""
    at_s: float


_Queue = OrderedDict[int, _Use]
"""Pages, the one used longest ago first."""


class IdlePages:
    """Pages by their last use. Owned by the ``BlockIndex``.

    Each operation takes the same time however many pages there are. Pins end in the order of use, so pages
    that lost theirs are a queue of their own, and the older of two fronts is the oldest without a pin.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._num_uses = 0
        self._plain: _Queue = OrderedDict()
        self._unpinned: _Queue = OrderedDict()
        """Those whose pin ended while they were here."""
        self._pinned: _Queue = OrderedDict()

    def __len__(self) -> int:
        return len(self._plain) + len(self._unpinned) + len(self._pinned)

    def __contains__(self, page: int) -> bool:
        return page in self._plain or page in self._unpinned or page in self._pinned

    @property
    def pages(self) -> tuple[int, ...]:
        """All, in the order in which they would be dropped."""
        plain = sorted((self._plain | self._unpinned).items(), key=lambda entry: entry[1])
        return (*(page for page, _ in plain), *self._pinned)

    @property
    def num_pinned(self) -> int:
        """Those with a pin."""
        return len(self._pinned)

    def use(self, page: int, *, is_pinned: bool) -> None:
        """Take a page in, or count it as used now; with a pin or without."""
        self.discard(page)
        self._num_uses += 1
        (self._pinned if is_pinned else self._plain)[page] = _Use(self._num_uses, self._clock.now())

    def discard(self, page: int) -> None:
        """Let a page go, if it is here."""
        for queue in (self._plain, self._unpinned, self._pinned):
            queue.pop(page, None)

    def unpin_oldest(self) -> int:
        """End the pin that was not used for the longest time; return the page, which keeps its last use.

        There must be one.
        """
        page, use = self._pinned.popitem(last=False)
        self._unpinned[page] = use
        return page

    def pop_oldest(self) -> int:
        """Return the page that is dropped next, which is here no more; there must be one."""
        queue = self._oldest_plain() or self._pinned
        page, _ = queue.popitem(last=False)
        return page

    def oldest_pin_s(self) -> float | None:
        """Return when the pin that was not used for the longest time was used; None where there is none."""
        return _front(self._pinned).at_s if self._pinned else None

    def oldest_plain_s(self) -> float | None:
        """Return the same of the pages without a pin."""
        queue = self._oldest_plain()
        return _front(queue).at_s if queue else None

    def _oldest_plain(self) -> _Queue:
        """Return the queue whose front has no pin and was used longest ago; an empty one where none has."""
        if self._plain and self._unpinned:
            return min(self._plain, self._unpinned, key=_front)
        return self._plain or self._unpinned


def _front(queue: _Queue) -> _Use:
    return next(iter(queue.values()))
