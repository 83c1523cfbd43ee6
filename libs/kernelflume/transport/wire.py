"""The notices that weight and attention nodes exchange; every one fits a single message.

A weight node sends WARM, QUERY, APPEND, FREE, FIND, SHARE, PUBLISH, STEP and RETRACT; an attention node
answers WARMED, PARTIAL, APPENDED, FREED, FOUND, SHARED, PUBLISHED and STEPPED. Tensors travel by the write
that a notice rides on; those of a STEP by kernels, or by writes with LANE_QUERY, LANE_APPEND and LANE_PARTIAL
on the host path.
Version: ``core.handshake.PROTOCOL_VERSION``.

Order is never assumed. A QUERY names the append counter that must have been filed before it is computed; a
PARTIAL names step and layer; a FREE that comes late only frees late.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kernelflume.core.blocks import KEY_BYTES
from kernelflume.core.errors import HandshakeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Kind(IntEnum):
    """First byte of every notice."""

    WARM = 1
    QUERY = 2
    APPEND = 3
    FREE = 4
    STEP = 5
    RETRACT = 6
    LANE_QUERY = 7
    LANE_APPEND = 8
    FIND = 9
    SHARE = 10
    PUBLISH = 11
    WARMED = 17
    PARTIAL = 18
    APPENDED = 19
    FREED = 20
    STEPPED = 21
    LANE_PARTIAL = 22
    FOUND = 23
    SHARED = 24
    PUBLISHED = 25


class RowStatus(IntEnum):
    """Outcome of a QUERY as a whole."""

    OK = 0
    MISMATCH = 1
    """The node does not hold what the plan says of some sequence: its outputs must not be used."""


PLAN_DTYPE = np.dtype([("sequence", "<u8"), ("num_rows", "<u4"), ("num_held", "<u4")])
"""One sequence of a step: how many consecutive rows are its own, and how many tokens the node must hold."""

APPEND_DTYPE = np.dtype([("sequence", "<u8"), ("num_rows", "<u4"), ("start", "<u4")])
"""One sequence of an append: consecutive rows, stored as token positions from ``start`` on."""

BLOCK_DTYPE = np.dtype([("key", f"V{KEY_BYTES}"), ("start", "<u4"), ("num_tokens", "<u4")])
"""A block of a context: its key (``core.blocks``), its first position, and its number of tokens."""

MAX_BLOCKS = 512
"""Most blocks that one notice names, to bound it."""

_QUERY = struct.Struct("<BBHIIHH")
_APPEND = struct.Struct("<BBBxIHH")
_PARTIAL = struct.Struct("<BBHIBxHI")
_APPENDED = struct.Struct("<BBBxIIH")
_COUNTED = struct.Struct("<BxHI")
_STEP = struct.Struct("<BBHII")
_STEP_LANE = struct.Struct("<HH")
_STEPPED = struct.Struct("<BBHII")
_LANE_DATA = struct.Struct("<BBHI")
_FIND = struct.Struct("<BxHI")
_SHARE = struct.Struct("<BxHxxxxQ")
_PUBLISH = struct.Struct("<BxHIQ")
_SHARED = struct.Struct("<BxHIQ")


@dataclass(frozen=True, slots=True)
class Query:
    """Queries of one layer are in the lane's query region; layer 0 carries the step's plan."""

    lane: int
    layer: int
    step: int
    appends: int
    """Appends of this lane's weight node that must have been filed before."""
    num_rows: int
    plan: np.ndarray | None
    """[num_sequences] of PLAN_DTYPE, at layer 0 alone."""

    def encode(self) -> bytes:
        """Return the notice."""
        body = b"" if self.plan is None else self.plan.tobytes()
        num_sequences = 0 if self.plan is None else len(self.plan)
        head = _QUERY.pack(
            Kind.QUERY, self.lane, self.layer, self.step, self.appends, self.num_rows, num_sequences
        )
        return head + body

    @classmethod
    def decode(cls, payload: bytes) -> Query:
        """Read the notice."""
        _, lane, layer, step, appends, num_rows, num_sequences = _QUERY.unpack_from(payload)
        plan = None
        if layer == 0:
            plan = np.frombuffer(payload, PLAN_DTYPE, num_sequences, _QUERY.size)
        return cls(lane, layer, step, appends, num_rows, plan)


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
class Partial:
    """Outputs and lse of one layer's rows are in the lane's partial region."""

    lane: int
    layer: int
    step: int
    status: RowStatus
    num_rows: int
    num_free_pages: int

    def encode(self) -> bytes:
        """Return the notice."""
        return _PARTIAL.pack(
            Kind.PARTIAL, self.lane, self.layer, self.step, self.status, self.num_rows, self.num_free_pages
        )

    @classmethod
    def decode(cls, payload: bytes) -> Partial:
        """Read the notice."""
        _, lane, layer, step, status, num_rows, num_free_pages = _PARTIAL.unpack_from(payload)
        return cls(lane, layer, step, RowStatus(status), num_rows, num_free_pages)


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


@dataclass(frozen=True, slots=True)
class Free:
    """These sequences ended; the answer is FREED.

    A weight node uses a sequence id once: what an append under way when this is sent still brings of it is
    dropped.
    """

    sequences: Sequence[int]

    def encode(self) -> bytes:
        """Return the notice."""
        return _COUNTED.pack(Kind.FREE, len(self.sequences), 0) + np.asarray(self.sequences, "<u8").tobytes()

    @classmethod
    def decode(cls, payload: bytes) -> Free:
        """Read the notice."""
        _, count, _ = _COUNTED.unpack_from(payload)
        return cls(tuple(np.frombuffer(payload, "<u8", count, _COUNTED.size).tolist()))


MAX_FREE = 1024
"""Most sequences one FREE may name, to bound the notice."""


@dataclass(frozen=True, slots=True)
class Freed:
    """How many pages are free after a FREE."""

    num_free_pages: int

    def encode(self) -> bytes:
        """Return the notice."""
        return _COUNTED.pack(Kind.FREED, 0, self.num_free_pages)

    @classmethod
    def decode(cls, payload: bytes) -> Freed:
        """Read the notice."""
        return cls(_COUNTED.unpack_from(payload)[2])


@dataclass(frozen=True, slots=True)
class Warm:
    """First notice on a new path, with a write of the largest bucket behind it; ``answer`` is the reply."""

    answer: bool
    num_free_pages: int = 0

    def encode(self) -> bytes:
        """Return the notice."""
        return _COUNTED.pack(Kind.WARMED if self.answer else Kind.WARM, 0, self.num_free_pages)

    @classmethod
    def decode(cls, payload: bytes) -> Warm:
        """Read the notice."""
        kind, _, num_free_pages = _COUNTED.unpack_from(payload)
        return cls(kind == Kind.WARMED, num_free_pages)


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

    def encode(self) -> bytes:
        """Return the notice."""
        return _SHARE.pack(Kind.SHARE, len(self.blocks), self.sequence) + self.blocks.tobytes()

    @classmethod
    def decode(cls, payload: bytes) -> Share:
        """Read the notice."""
        _, count, sequence = _SHARE.unpack_from(payload)
        return cls(sequence, np.frombuffer(payload, BLOCK_DTYPE, count, _SHARE.size))


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

    def encode(self) -> bytes:
        """Return the notice."""
        head = _PUBLISH.pack(Kind.PUBLISH, len(self.blocks), self.appends, self.sequence)
        return head + self.blocks.tobytes()

    @classmethod
    def decode(cls, payload: bytes) -> Publish:
        """Read the notice."""
        _, count, appends, sequence = _PUBLISH.unpack_from(payload)
        return cls(sequence, appends, np.frombuffer(payload, BLOCK_DTYPE, count, _PUBLISH.size))


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


class LaneStep(NamedTuple):
    """A node's share of one lane in one step; every sequence has one row."""

    plan: np.ndarray
    """[rows] of PLAN_DTYPE: which rows ask the node, in the order of its query region."""
    entries: np.ndarray
    """[rows] of APPEND_DTYPE: which keys and values it stores, in the order of its append region."""


@dataclass(frozen=True, slots=True)
class Step:
    """A decode step of captured graphs begins; sent before its first query."""

    step: int
    appends: int
    """Appends of this weight node's first lane that must have been filed before."""
    lanes: tuple[LaneStep, ...]

    def encode(self) -> bytes:
        """Return the notice."""
        parts = [_STEP.pack(Kind.STEP, len(self.lanes), 0, self.step, self.appends)]
        for lane in self.lanes:
            parts += (
                _STEP_LANE.pack(len(lane.plan), len(lane.entries)),
                lane.plan.tobytes(),
                lane.entries.tobytes(),
            )
        return b"".join(parts)

    @classmethod
    def decode(cls, payload: bytes) -> Step:
        """Read the notice."""
        _, num_lanes, _, step, appends = _STEP.unpack_from(payload)
        lanes = []
        at = _STEP.size
        for _ in range(num_lanes):
            num_rows, num_entries = _STEP_LANE.unpack_from(payload, at)
            at += _STEP_LANE.size
            plan = np.frombuffer(payload, PLAN_DTYPE, num_rows, at)
            at += plan.nbytes
            entries = np.frombuffer(payload, APPEND_DTYPE, num_entries, at)
            at += entries.nbytes
            lanes.append(LaneStep(plan, entries))
        return cls(step, appends, tuple(lanes))


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step was planned and its kernels wait for queries; MISMATCH: it was not, and none will answer."""

    step: int
    status: RowStatus
    num_free_pages: int
    failed: tuple[int, ...] = ()
    """As in ``Appended``."""

    def encode(self) -> bytes:
        """Return the notice."""
        head = _STEPPED.pack(Kind.STEPPED, self.status, len(self.failed), self.step, self.num_free_pages)
        return head + np.asarray(self.failed, "<u8").tobytes()

    @classmethod
    def decode(cls, payload: bytes) -> Stepped:
        """Read the notice."""
        _, status, num_failed, step, num_free_pages = _STEPPED.unpack_from(payload)
        failed = np.frombuffer(payload, "<u8", num_failed, _STEPPED.size)
        return cls(step, RowStatus(status), num_free_pages, tuple(failed.tolist()))


@dataclass(frozen=True, slots=True)
class Retract:
    """A step was given up: what it stored is forgotten, by the nodes that launched it. No answer."""

    step: int

    def encode(self) -> bytes:
        """Return the notice."""
        return _COUNTED.pack(Kind.RETRACT, 0, self.step)

    @classmethod
    def decode(cls, payload: bytes) -> Retract:
        """Read the notice."""
        return cls(_COUNTED.unpack_from(payload)[2])


@dataclass(frozen=True, slots=True)
class LaneData:
    """What one layer of a STEP needs is in a lane's region, on the host path."""

    kind: Kind
    """LANE_QUERY, LANE_APPEND or LANE_PARTIAL."""
    lane: int
    layer: int
    """0 for keys and values that travel once a step."""
    step: int
    """Steps count from 1: what comes of step 0 is nothing, and opens the way."""

    def encode(self) -> bytes:
        """Return the notice."""
        return _LANE_DATA.pack(self.kind, self.lane, self.layer, self.step)

    @classmethod
    def decode(cls, payload: bytes) -> LaneData:
        """Read the notice."""
        kind, lane, layer, step = _LANE_DATA.unpack_from(payload)
        return cls(Kind(kind), lane, layer, step)


def is_lane_data(payload: bytes) -> bool:
    """Tell whether a notice is ``LaneData`` for an attention node, without reading all of it."""
    return payload[:1] in _LANE_DATA_FOR_ATTENTION


_LANE_DATA_FOR_ATTENTION = (bytes([Kind.LANE_QUERY]), bytes([Kind.LANE_APPEND]))

WireNotice = (
    LaneData
    | Query
    | Append
    | Partial
    | Appended
    | Free
    | Freed
    | Find
    | Found
    | Share
    | Shared
    | Publish
    | Published
    | Warm
    | Step
    | Stepped
    | Retract
)

_DECODERS: dict[Kind, Callable[[bytes], WireNotice]] = {
    Kind.WARM: Warm.decode,
    Kind.QUERY: Query.decode,
    Kind.APPEND: Append.decode,
    Kind.FREE: Free.decode,
    Kind.STEP: Step.decode,
    Kind.RETRACT: Retract.decode,
    Kind.FIND: Find.decode,
    Kind.SHARE: Share.decode,
    Kind.PUBLISH: Publish.decode,
    Kind.LANE_QUERY: LaneData.decode,
    Kind.LANE_APPEND: LaneData.decode,
    Kind.LANE_PARTIAL: LaneData.decode,
    Kind.WARMED: Warm.decode,
    Kind.PARTIAL: Partial.decode,
    Kind.APPENDED: Appended.decode,
    Kind.FREED: Freed.decode,
    Kind.STEPPED: Stepped.decode,
    Kind.FOUND: Found.decode,
    Kind.SHARED: Shared.decode,
    Kind.PUBLISHED: Published.decode,
}


def decode(payload: bytes) -> WireNotice:
    """Read any notice.

    Raises:
        HandshakeError: the bytes are no notice of this protocol version.
    """
    try:
        return _DECODERS[Kind(payload[0])](payload)
    except (ValueError, IndexError, struct.error) as error:
        raise HandshakeError(f"unreadable notice of {len(payload)} bytes: {error}") from error
