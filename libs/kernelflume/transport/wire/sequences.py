"""The end of sequences, and the beginning of a path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kernelflume.transport.wire.kinds import COUNTED, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_FREE = 1024
"""Most sequences one FREE may name, to bound the notice."""


@dataclass(frozen=True, slots=True)
class Free:
    """These sequences ended; the answer is FREED.

    A weight node uses a sequence id once: what an append under way when this is sent still brings of it is
    dropped.
    """

    sequences: Sequence[int]

    def encode(self) -> bytes:
        """Return the notice."""
        return COUNTED.pack(Kind.FREE, len(self.sequences), 0) + np.asarray(self.sequences, "<u8").tobytes()

    @classmethod
    def decode(cls, payload: bytes) -> Free:
        """Read the notice."""
        _, count, _ = COUNTED.unpack_from(payload)
        return cls(tuple(np.frombuffer(payload, "<u8", count, COUNTED.size).tolist()))


@dataclass(frozen=True, slots=True)
class Freed:
    """How many pages are free after a FREE."""

    num_free_pages: int

    def encode(self) -> bytes:
        """Return the notice."""
        return COUNTED.pack(Kind.FREED, 0, self.num_free_pages)

    @classmethod
    def decode(cls, payload: bytes) -> Freed:
        """Read the notice."""
        return cls(COUNTED.unpack_from(payload)[2])
