"""The pages of one sequence in an array that grows, so that a step's page table is a copy and no loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FIRST_SIZE = 8


class PageList:
    """Page numbers in the order of the tokens that they hold."""

    __slots__ = ("_num_pages", "_numbers")

    def __init__(self) -> None:
        self._numbers = np.empty(_FIRST_SIZE, np.int32)
        self._num_pages = 0

    def __len__(self) -> int:
        return self._num_pages

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers.tolist())

    def __getitem__(self, index: int) -> int:
        return int(self.numbers[index])

    @property
    def numbers(self) -> np.ndarray:
        """int32 [pages]: a view that holds until the list changes."""
        return self._numbers[: self._num_pages]

    def extend(self, pages: Sequence[int]) -> None:
        """Add pages at the end."""
        needed = self._num_pages + len(pages)
        if needed > len(self._numbers):
            grown = np.empty(max(needed, 2 * len(self._numbers)), np.int32)
            grown[: self._num_pages] = self.numbers
            self._numbers = grown
        self._numbers[self._num_pages : needed] = pages
        self._num_pages = needed

    def pop(self) -> int:
        """Take the last page off."""
        last = self[-1]
        self._num_pages -= 1
        return last
