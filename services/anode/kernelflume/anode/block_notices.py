"""Answers to the notices about named blocks: which are here, who holds them too, what they are called."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kernelflume.anode.block_index import Block
from kernelflume.anode.kvpool import HeldSequence
from kernelflume.core.errors import HandshakeError, LifecycleError
from kernelflume.transport import wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernelflume.anode.kvpool import KvPool
    from kernelflume.anode.links import Link


@dataclass(slots=True)
class BlockNotices:
    """Serves FIND, SHARE and PUBLISH from one pool, and counts hits. Owned by the exchange."""

    pool: KvPool
    tokens_found: int = 0
    """Tokens of blocks that were asked for and are here."""
    tokens_shared: int = 0
    """Tokens that sequences were given without an append."""

    def find(self, notice: wire.Find) -> wire.Found:
        """Say which blocks are here; those are the last to be evicted.

        A node that is told to keep nothing finds nothing, but what sequences hold is shared all the same.

        Raises:
            HandshakeError: the notice names too many.
        """
        _check_count(len(notice.keys))
        blocks = self.pool.blocks
        pages = [blocks.find(key) if blocks.is_cache else None for key in notice.keys.tolist()]
        here = [page for page in pages if page is not None]
        blocks.touch(here)
        self.tokens_found += sum(self.pool.book.num_filled(page) for page in here)
        return wire.Found(notice.number, np.array([page is not None for page in pages], bool))

    def share(self, link: Link, notice: wire.Share) -> wire.Shared:
        """Let a sequence hold blocks.

        Raises:
            HandshakeError: they cannot follow what it holds.
        """
        _check_count(len(notice.blocks))
        num_shared = 0
        if not link.has_ended(notice.sequence):
            sequence = link.sequences.get(notice.sequence) or HeldSequence()
            num_before = sequence.num_tokens
            with _by_the_protocol():
                num_shared = self.pool.share(sequence, _blocks(notice.blocks), notice.pinning)
            self.tokens_shared += sequence.num_tokens - num_before
            if num_shared:
                link.sequences[notice.sequence] = sequence
        return wire.Shared(notice.sequence, num_shared, self.pool.num_free_pages)

    def publish(self, link: Link, notice: wire.Publish) -> wire.Published:
        """Name blocks of a sequence, as far as it holds them.

        Raises:
            HandshakeError: they are no blocks.
        """
        _check_count(len(notice.blocks))
        with _by_the_protocol():
            sequence = link.sequences.get(notice.sequence) or HeldSequence()
            self.pool.publish(sequence, _blocks(notice.blocks), notice.pinning)
        return wire.Published(notice.sequence, len(notice.blocks), self.pool.num_free_pages)


def _check_count(count: int) -> None:
    if count > wire.MAX_BLOCKS:
        raise HandshakeError(f"a notice names {count} blocks, more than {wire.MAX_BLOCKS}")


def _blocks(entries: np.ndarray) -> list[Block]:
    return [Block(*entry) for entry in entries.tolist()]


@contextmanager
def _by_the_protocol() -> Iterator[None]:
    try:
        yield
    except LifecycleError as error:
        raise HandshakeError(str(error)) from error
