"""Named blocks of contexts: which are here, who holds them too, what they are called."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from kernelflume.core.blocks import KEY_BYTES
from kernelflume.core.errors import HandshakeError
from kernelflume.core.retention import AS_IT_IS, Pinning, Retention
from kernelflume.transport.wire.kinds import Kind

BLOCK_DTYPE = np.dtype([("key", f"V{KEY_BYTES}"), ("start", "<u4"), ("num_tokens", "<u4")])
"""A block of a context: its key (``core.blocks``), its first position, and its number of tokens."""

MAX_BLOCKS = 512
"""Most blocks that one notice names, to bound it."""
_FIND = struct.Struct("<BxHI")
_SHARE = struct.Struct("<BBHIQ")
_PUBLISH = struct.Struct("<BBHIQI")
_SHARED = struct.Struct("<BxHIQ")
_RETENTIONS = (Retention.UNCHANGED, Retention.IN_MEMORY, Retention.DAY)
"""By the byte that stands for each."""


@dataclass(frozen=True, slots=True)
class Find:
    """Which of these blocks are here? Nothing is kept for the one who asks; the answer is FOUND."""

    number: int
    """Names the question on this link."""
    keys: np.ndarray
    """[num_blocks] of the dtype of BLOCK_DTYPE's ``key``, at most MAX_BLOCKS."""

    def encode(self) -> bytes:
        """Return the notice."""
        return _FIND.pack(Kind.FIND, len(self.keys), self.number) + self.keys.tobytes()

    @classmethod
    def decode(cls, payload: bytes) -> Find:
        """Read the notice."""
        _, count, number = _FIND.unpack_from(payload)
        return cls(number, np.frombuffer(payload, BLOCK_DTYPE["key"], count, _FIND.size))


@dataclass(frozen=True, slots=True)
class Found:
    """For each block of a FIND, whether it is here now; it may be dropped until it is shared."""

    number: int
    is_here: np.ndarray
    """[num_blocks] bool."""

    def encode(self) -> bytes:
        """Return the notice."""
        head = _FIND.pack(Kind.FOUND, len(self.is_here), self.number)
        return head + np.packbits(self.is_here).tobytes()

    @classmethod
    def decode(cls, payload: bytes) -> Found:
        """Read the notice."""
        _, count, number = _FIND.unpack_from(payload)
        bits = np.frombuffer(payload, np.uint8, -(-count // 8), _FIND.size)
        return cls(number, np.unpackbits(bits, count=count).astype(bool))


@dataclass(frozen=True, slots=True)
class Share:
    """Let a sequence hold these blocks, as if it had appended them; the answer is SHARED.

    A sequence may be given more by a further one, once the first was answered. Blocks go up in position.
    """

    sequence: int
    blocks: np.ndarray
    """[num_blocks] of BLOCK_DTYPE, at most MAX_BLOCKS; only the last of a context may be less than full."""
    pinning: Pinning = AS_IT_IS
    """What becomes of the pins of those that it holds then."""

    def encode(self) -> bytes:
        """Return the notice."""
        pinning = self.pinning
        head = _SHARE.pack(
            Kind.SHARE, _code(pinning.retention), len(self.blocks), pinning.num_tokens, self.sequence
        )
        return head + self.blocks.tobytes()

    @classmethod
    def decode(cls, payload: bytes) -> Share:
        """Read the notice."""
        _, code, count, num_tokens, sequence = _SHARE.unpack_from(payload)
        blocks = np.frombuffer(payload, BLOCK_DTYPE, count, _SHARE.size)
        return cls(sequence, blocks, _pinning(code, num_tokens))


@dataclass(frozen=True, slots=True)
class Shared:
    """How many of a SHARE's blocks, from its first on, the sequence now holds: fewer where one was gone."""

    sequence: int
    num_blocks: int
    num_free_pages: int

    def encode(self) -> bytes:
        """Return the notice."""
        return _SHARED.pack(Kind.SHARED, self.num_blocks, self.num_free_pages, self.sequence)

    @classmethod
    def decode(cls, payload: bytes) -> Shared:
        """Read the notice."""
        _, num_blocks, num_free_pages, sequence = _SHARED.unpack_from(payload)
        return cls(sequence, num_blocks, num_free_pages)


@dataclass(frozen=True, slots=True)
class Publish:
    """Name blocks that a sequence holds here, so that others find them; the answer is PUBLISHED.

    A block whose name stands for another page already stays unnamed, and one that the sequence does not hold
    (any more) is passed over: names are a help, and no promise. Named blocks stay, while there is room, when
    their sequences have ended.
    """

    sequence: int
    appends: int
    """Appends of this weight node's first lane that must have been filed before."""
    blocks: np.ndarray
    """[num_blocks] of BLOCK_DTYPE, at most MAX_BLOCKS."""
    pinning: Pinning = AS_IT_IS
    """What becomes of the pins of the pages that have these names then."""

    def encode(self) -> bytes:
        """Return the notice."""
        pinning = self.pinning
        head = _PUBLISH.pack(
            Kind.PUBLISH,
            _code(pinning.retention),
            len(self.blocks),
            self.appends,
            self.sequence,
            pinning.num_tokens,
        )
        return head + self.blocks.tobytes()

    @classmethod
    def decode(cls, payload: bytes) -> Publish:
        """Read the notice."""
        _, code, count, appends, sequence, num_tokens = _PUBLISH.unpack_from(payload)
        blocks = np.frombuffer(payload, BLOCK_DTYPE, count, _PUBLISH.size)
        return cls(sequence, appends, blocks, _pinning(code, num_tokens))


@dataclass(frozen=True, slots=True)
class Published:
    """The blocks of a PUBLISH are named, as far as that was possible."""

    sequence: int
    num_blocks: int
    """Of the PUBLISH, all of them: which one is answered."""
    num_free_pages: int

    def encode(self) -> bytes:
        """Return the notice."""
        return _SHARED.pack(Kind.PUBLISHED, self.num_blocks, self.num_free_pages, self.sequence)

    @classmethod
    def decode(cls, payload: bytes) -> Published:
        """Read the notice."""
        _, num_blocks, num_free_pages, sequence = _SHARED.unpack_from(payload)
        return cls(sequence, num_blocks, num_free_pages)


def _code(retention: Retention) -> int:
    return _RETENTIONS.index(retention)


def _pinning(code: int, num_tokens: int) -> Pinning:
    if code >= len(_RETENTIONS):
        raise HandshakeError(f"{code} stands for no retention")
    return Pinning(_RETENTIONS[code], num_tokens)
