"""Blocks with their names as arrays: what notices to attention nodes carry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kernelflume.transport.wire import BLOCK_DTYPE

if TYPE_CHECKING:
    from collections.abc import Iterable


def packed(keys: Iterable[bytes]) -> np.ndarray:
    """Return keys as [num_blocks] of the dtype of BLOCK_DTYPE's ``key``."""
    return np.frombuffer(b"".join(keys), BLOCK_DTYPE["key"])


def named_blocks(numbers: np.ndarray, keys: np.ndarray, block_tokens: int, *, num_tokens: int) -> np.ndarray:
    """Return blocks of a context as [num_blocks] of BLOCK_DTYPE.

    Args:
        numbers: [num_blocks] which blocks they are, counted from the context's first.
        keys: [num_blocks] of these.
        block_tokens: tokens of a full block.
        num_tokens: of the context: its last block may be less than full.
    """
    blocks = np.empty(len(numbers), BLOCK_DTYPE)
    blocks["key"] = keys
    blocks["start"] = numbers * block_tokens
    blocks["num_tokens"] = np.minimum(block_tokens, num_tokens - numbers * block_tokens)
    return blocks
