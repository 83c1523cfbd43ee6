"""The first write on a new path, each way."""

from __future__ import annotations

from dataclasses import dataclass

from kernelflume.transport.wire.kinds import COUNTED, Kind


@dataclass(frozen=True, slots=True)
class Warm:
    """First notice on a new path, with a write of the largest bucket behind it; ``answer`` is the reply."""

    answer: bool
    num_free_pages: int = 0

    def encode(self) -> bytes:
        """Return the notice."""
        return COUNTED.pack(Kind.WARMED if self.answer else Kind.WARM, 0, self.num_free_pages)

    @classmethod
    def decode(cls, payload: bytes) -> Warm:
        """Read the notice."""
        kind, _, num_free_pages = COUNTED.unpack_from(payload)
        return cls(kind == Kind.WARMED, num_free_pages)
