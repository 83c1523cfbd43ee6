"""Every page of the pool as one value, for whoever checks that none is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kernelflume.anode.control import PageListing, SequenceListing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kernelflume.anode.kvpool import KvPool
    from kernelflume.anode.links import Link


def list_pages(pool: KvPool, links: Iterable[Link]) -> PageListing:
    """Return what the pool's pages are and what the links' sequences hold, by copies."""
    return PageListing(
        num_holders=pool.book.holders,
        cached=np.array(pool.blocks.idle_pages, np.uint32),
        free=pool.book.free_pages,
        pinned=np.array(pool.blocks.pinned_pages, np.uint32),
        max_pinned=pool.blocks.max_pinned,
        sequences=tuple(
            SequenceListing(
                weight_node=link.weight_node,
                sequence_id=sequence_id,
                ranges=held.held.ranges,
                pages=held.pages.numbers.copy(),
            )
            for link in links
            for sequence_id, held in link.holdings.items()
        ),
    )
