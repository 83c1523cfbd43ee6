"""A sequence's pages in an array."""

from __future__ import annotations

import numpy as np
import pytest

from kernelflume.anode.page_list import PageList


def test_it_is_the_list_that_it_grew_to() -> None:
    pages, expected = PageList(), list[int]()
    assert len(pages) == 0
    for number in range(0, 90, 3):
        pages.extend([number, number + 1, number + 2])
        expected += [number, number + 1, number + 2]
        if number % 4 == 0:
            assert pages.pop() == expected.pop()
        assert list(pages) == expected
        assert (pages[0], pages[-1]) == (expected[0], expected[-1])
    assert pages.numbers.dtype == np.int32
    assert pages.numbers.tolist() == expected


def test_there_is_nothing_in_an_empty_one() -> None:
    with pytest.raises(IndexError):
        PageList()[-1]
