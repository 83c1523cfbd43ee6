"""Words that a captured graph and a CPU loop signal each other by (paper section 5.1): pinned host memory."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import numpy as np

_WORDS_A_LINE = 16
"""Words of one cache line: what the GPU writes and what the CPU writes must not share one."""


class FlagKind(IntEnum):
    """What is complete. On the weight node its graph sets the first two and waits for the third; on an
    attention node it is the other way round."""

    QUERY = 0
    KEYS_VALUES = 1
    ATTENTION = 2


class StepFlags:
    """One flag a kind and layer of one lane's step. A graph holds their addresses, so they never move.

    Flags go from 0 to 1 within a step and back by ``clear`` between two.
    """

    def __init__(self, num_layers: int, *, pinned: bool = True) -> None:
        """Allocate; all flags are set at first, so that a graph that nobody drives runs through.

        Args:
            num_layers: the model's layers.
            pinned: fit for a GPU; tests without one take plain memory.
        """
        self._stride = -(-num_layers // _WORDS_A_LINE) * _WORDS_A_LINE
        memory = torch.ones(len(FlagKind) * self._stride, dtype=torch.int32)
        self._memory = memory.pin_memory() if pinned else memory
        self._array: np.ndarray = self._memory.numpy()
        self._words = self._array.data  # an element is read in 60 ns
        self._num_layers = num_layers

    def address(self, kind: FlagKind, layer: int) -> int:
        """Return a flag's address, which is the same for the GPU: pinned memory has one for both."""
        return self._memory.data_ptr() + 4 * self._index(kind, layer)

    def is_set(self, kind: FlagKind, layer: int) -> bool:
        """Look at a flag."""
        return bool(self._words[kind * self._stride + layer])

    def set(self, kind: FlagKind, layer: int) -> None:
        """Set a flag."""
        self._words[kind * self._stride + layer] = 1

    def set_all(self, *kinds: FlagKind) -> None:
        """Set every layer's flag of some kinds: whatever waits for them goes on."""
        for kind in kinds:
            self._array[kind * self._stride : (kind + 1) * self._stride] = 1

    def clear(self) -> None:
        """Begin a step; no graph may be using the flags."""
        self._array[:] = 0

    def _index(self, kind: FlagKind, layer: int) -> int:
        if not 0 <= layer < self._num_layers:
            raise IndexError(f"layer {layer} of {self._num_layers}")
        return kind * self._stride + layer
