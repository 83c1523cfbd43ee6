from __future__ import annotations

import pytest

from kernelflume.anode.pages import PageAllocator
from kernelflume.core.errors import KvPoolExhaustedError, LifecycleError


def test_a_sequence_grows_into_the_next_page() -> None:
    allocator = PageAllocator(32)
    pages = allocator.allocate(2)
    for _ in range(10):
        pages += allocator.allocate(1, after=pages[-1])
    assert pages == list(range(12))


def test_sequences_start_with_room_to_grow() -> None:
    allocator = PageAllocator(64)
    sequences = [allocator.allocate(1) for _ in range(4)]
    for _ in range(7):
        for pages in sequences:
            pages.extend(allocator.allocate(1, after=pages[-1]))
    for pages in sequences:
        assert pages == list(range(pages[0], pages[0] + 8))


def test_the_last_pages_are_found_wherever_they_are() -> None:
    allocator = PageAllocator(8)
    allocator.allocate(8)
    allocator.free([1, 4, 6])
    assert sorted(allocator.allocate(3)) == [1, 4, 6]
    assert allocator.num_free == 0


def test_too_many_pages_are_refused_whole() -> None:
    allocator = PageAllocator(4)
    allocator.allocate(3)
    with pytest.raises(KvPoolExhaustedError, match="2 pages are needed and 1 are free"):
        allocator.allocate(2)
    assert allocator.num_free == 1


@pytest.mark.parametrize("pages", [[0], [3], [-1], [8], [2, 3], [2, 2]])
def test_a_page_that_is_not_owned_cannot_be_freed(pages: list[int]) -> None:
    allocator = PageAllocator(8)
    allocator.allocate(8)
    allocator.free([0, 3])
    with pytest.raises(LifecycleError, match="not all owned"):
        allocator.free(pages)


def test_a_pool_without_pages_is_refused() -> None:
    with pytest.raises(LifecycleError):
        PageAllocator(0)
