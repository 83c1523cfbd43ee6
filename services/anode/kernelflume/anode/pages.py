"""Which pages of the pool are free, and where a sequence's next page should be.

A sequence whose pages follow each other is one contiguous extent, and attention reads it without a gather.
So a sequence grows into the page behind its last one, and starts where the largest gap leaves it, and the
sequence before the gap, room to grow.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from kernelflume.core.errors import KvPoolExhaustedError, LifecycleError


class PageAllocator:
    """Hands out page numbers from 0 to ``num_pages`` - 1. Owned by the pool; each call is exact or raises."""

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise LifecycleError(f"a pool needs at least one page, not {num_pages}")
        self.num_pages = num_pages
        self._starts: list[int] = [0]
        """First page of each gap, ascending; gaps never touch."""
        self._ends: list[int] = [num_pages]
        """Page behind each gap."""
        self._num_free = num_pages

    @property
    def num_free(self) -> int:
        """Pages that nobody owns."""
        return self._num_free

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """First page of each free stretch and the page behind it, ascending."""
        return list(zip(self._starts, self._ends, strict=True))

    def allocate(self, num_pages: int, *, after: int | None = None) -> list[int]:
        """Take ``num_pages`` pages, contiguous with page ``after`` and with each other as far as possible.

        Raises:
            KvPoolExhaustedError: fewer are free; none was taken.
        """
        if num_pages > self._num_free:
            raise KvPoolExhaustedError(f"{num_pages} pages are needed and {self._num_free} are free")
        pages: list[int] = []
        while len(pages) < num_pages:
            wanted = num_pages - len(pages)
            last = pages[-1] if pages else after
            gap = None if last is None else self._gap_at(last + 1)
            if gap is None or last is None:
                gap = max(range(len(self._starts)), key=lambda index: self._ends[index] - self._starts[index])
                first = self._start_in(gap, wanted)
            else:
                first = last + 1
            end = min(first + wanted, self._ends[gap])
            self._take(gap, first, end)
            pages.extend(range(first, end))
        return pages

    def free(self, pages: list[int]) -> None:
        """Give pages back.

        Raises:
            LifecycleError: a page is free already or out of range; those before it in order were freed.
        """
        ordered = sorted(pages)
        index = 0
        while index < len(ordered):
            start = end = ordered[index]
            while index < len(ordered) and ordered[index] == end:
                end += 1
                index += 1
            self._give(start, end)

    def _gap_at(self, page: int) -> int | None:
        index = bisect_right(self._starts, page) - 1
        return index if index >= 0 and page < self._ends[index] else None

    def _start_in(self, gap: int, wanted: int) -> int:
        start, end = self._starts[gap], self._ends[gap]
        if start == 0 or end - start <= wanted:
            return start
        # The page before the gap is owned, and its sequence will grow into the gap.
        return start + (end - start - wanted + 1) // 2

    def _take(self, gap: int, first: int, end: int) -> None:
        start, gap_end = self._starts[gap], self._ends[gap]
        del self._starts[gap], self._ends[gap]
        for left, right in ((end, gap_end), (start, first)):
            if left < right:
                self._starts.insert(gap, left)
                self._ends.insert(gap, right)
        self._num_free -= end - first

    def _give(self, start: int, end: int) -> None:
        index = bisect_left(self._starts, end)
        before = index - 1  # the last gap that starts before ``end``
        if start < 0 or end > self.num_pages or (before >= 0 and self._ends[before] > start):
            raise LifecycleError(f"pages {start} to {end - 1} are not all owned")
        self._num_free += end - start
        joins_before = before >= 0 and self._ends[before] == start
        joins_after = index < len(self._starts) and self._starts[index] == end
        if joins_before and joins_after:
            self._ends[before] = self._ends[index]
            del self._starts[index], self._ends[index]
        elif joins_before:
            self._ends[before] = end
        elif joins_after:
            self._starts[index] = start
        else:
            insort(self._starts, start)
            self._ends.insert(index, end)
