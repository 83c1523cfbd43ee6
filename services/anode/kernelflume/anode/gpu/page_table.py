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
    def of(cls, sequences: Sequence[HeldSequence], page_tokens: int) -> Self:
        """Describe what the sequences hold; every one must hold a token."""
        counts = [len(sequence.pages) for sequence in sequences]
        return cls(
            np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
            np.fromiter((page for sequence in sequences for page in sequence.pages), np.int32, sum(counts)),
            np.array(
                [sequence.num_tokens - (count - 1) * page_tokens
                 for sequence, count in zip(sequences, counts, strict=True)],
                np.int32,
            ),
        )  # fmt: skip
