"""Keys and values of new tokens, and where they end up."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from kernelflume.transport.wire.kinds import Kind

APPEND_DTYPE = np.dtype([("sequence", "<u8"), ("num_rows", "<u4"), ("start", "<u4")])
"""One sequence of an append: consecutive rows, stored as token positions from ``start`` on."""
_APPEND = struct.Struct("<BBBxIHH")
_APPENDED = struct.Struct("<BBBxIIH")


@dataclass(frozen=True, slots=True)
class Append:
    """Keys and values of new tokens, all layers, are in a slot of the lane's append region."""

    lane: int
    slot: int
    counter: int
    """Counts this lane's appends from 1."""
    num_rows: int
    entries: np.ndarray
    """[num_sequences] of APPEND_DTYPE; a sequence may stand more than once."""

    def encode(self) -> bytes:
        """Return the notice."""
        head = _APPEND.pack(Kind.APPEND, self.lane, self.slot, self.counter, self.num_rows, len(self.entries))
        return head + self.entries.tobytes()

    @classmethod
    def decode(cls, payload: bytes) -> Append:
        """Read the notice."""
        _, lane, slot, counter, num_rows, num_sequences = _APPEND.unpack_from(payload)
        entries = np.frombuffer(payload, APPEND_DTYPE, num_sequences, _APPEND.size)
        return cls(lane, slot, counter, num_rows, entries)


@dataclass(frozen=True, slots=True)
class Appended:
    """An append was filed and its slot may be written again."""

    lane: int
    slot: int
    counter: int
    num_free_pages: int
    failed: tuple[int, ...] = ()
    """Sequences of which nothing is held any more, as no page was free: they must be recomputed, under new
    ids. Those that a FREE ended meanwhile are named too."""

    def encode(self) -> bytes:
        """Return the notice."""
        head = _APPENDED.pack(
            Kind.APPENDED, self.lane, self.slot, self.counter, self.num_free_pages, len(self.failed)
        )
        return head + np.asarray(self.failed, "<u8").tobytes()

    @classmethod
    def decode(cls, payload: bytes) -> Appended:
        """Read the notice."""
        _, lane, slot, counter, num_free_pages, num_failed = _APPENDED.unpack_from(payload)
        failed = np.frombuffer(payload, "<u8", num_failed, _APPENDED.size)
        return cls(lane, slot, counter, num_free_pages, tuple(failed.tolist()))
