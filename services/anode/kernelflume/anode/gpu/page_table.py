"""Where the tokens of each sequence of a step lie, as FlashInfer reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.anode.kvpool import HeldSequence


@dataclass(frozen=True, slots=True)
class PageTable:
    """Pages of each sequence, in order."""

    indptr: np.ndarray
    """int32 [sequences + 1]: where each one's pages begin."""
    indices: np.ndarray
    """int32 [pages in all]"""
    last_page_len: np.ndarray
    """int32 [sequences]: tokens in each one's last page, 1 to a page's size."""

    @classmethod
    def none(cls) -> Self:
        """Return the table of no sequence."""
        return cls(np.zeros(1, np.int32), np.empty(0, np.int32), np.empty(0, np.int32))

    @classmethod
    def one_page_each(cls, num_rows: int, num_pages: int) -> Self:
        """Return a table of sequences of one token, to try a kernel with."""
        pages = np.arange(num_rows, dtype=np.int32) % num_pages
        return cls(np.arange(num_rows + 1, dtype=np.int32), pages, np.ones(num_rows, np.int32))

    def padded(self, num_sequences: int) -> PageTable:
        """Return the table with sequences of no token behind, ``num_sequences`` in all."""
        given = len(self.last_page_len)
        if given == num_sequences:
            return self
        indptr = np.full(num_sequences + 1, self.indptr[-1])
        indptr[: given + 1] = self.indptr
        last_page_len = np.zeros(num_sequences, np.int32)
        last_page_len[:given] = self.last_page_len
        return PageTable(indptr, self.indices, last_page_len)

    @classmethod
    def of(cls, sequences: Sequence[HeldSequence], page_tokens: int) -> Self:
        """Describe what the sequences hold."""
        if not sequences:
            return cls.none()
        indptr = np.zeros(len(sequences) + 1, np.int32)
        counts = np.array([len(sequence.pages) for sequence in sequences], np.int32)
        np.cumsum(counts, out=indptr[1:])
        tokens = np.array([sequence.num_tokens for sequence in sequences], np.int32)
        return cls(
            indptr,
            np.concatenate([sequence.pages.numbers for sequence in sequences]),
            # A sequence of no token has no page, and nothing in it.
            tokens - np.maximum(counts - 1, 0) * np.int32(page_tokens),
        )
