"""A listing of pages as messages of bounded size, however large the pool is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelflume.rpc.v1 import anode_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from kernelflume.anode.control import PageListing, SequenceListing

PART_PAGES = 1 << 16
"""Page numbers of a message, which are at most 5 bytes each; a sequence of more has a message of its own."""


def parts_of(
    listing: PageListing, *, page_tokens: int, part_pages: int = PART_PAGES
) -> Iterator[anode_pb2.PagesPart]:
    """Give the listing part by part; there is always one."""
    yield anode_pb2.PagesPart(page_tokens=page_tokens, max_pinned_pages=listing.max_pinned)
    for piece in _pieces(listing.num_holders, part_pages):
        yield anode_pb2.PagesPart(num_holders=piece)
    for piece in _pieces(listing.cached, part_pages):
        yield anode_pb2.PagesPart(cached_pages=piece)
    for piece in _pieces(listing.free, part_pages):
        yield anode_pb2.PagesPart(free_pages=piece)
    for piece in _pieces(listing.pinned, part_pages):
        yield anode_pb2.PagesPart(pinned_pages=piece)
    part, size = anode_pb2.PagesPart(), 0
    for sequence in listing.sequences:
        cost = len(sequence.pages) + len(sequence.ranges) + 1
        if size and size + cost > part_pages:
            yield part
            part, size = anode_pb2.PagesPart(), 0
        part.sequences.append(_sequence(sequence))
        size += cost
    if size:
        yield part


def _pieces(numbers: np.ndarray, size: int) -> Iterator[list[int]]:
    for start in range(0, len(numbers), size):
        yield numbers[start : start + size].tolist()


def _sequence(sequence: SequenceListing) -> anode_pb2.SequencePages:
    return anode_pb2.SequencePages(
        weight_node=sequence.weight_node,
        sequence_id=sequence.sequence_id,
        ranges=[anode_pb2.TokenSpan(start=part.start, end=part.end) for part in sequence.ranges],
        pages=sequence.pages.tolist(),
    )
