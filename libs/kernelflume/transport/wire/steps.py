"""Decode steps of captured graphs, and what their layers bring on the host path."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kernelflume.transport.wire.appends import APPEND_DTYPE
from kernelflume.transport.wire.kinds import COUNTED, Kind
from kernelflume.transport.wire.queries import PLAN_DTYPE, RowStatus

_STEP = struct.Struct("<BBHII")
_STEP_LANE = struct.Struct("<HH")
_STEPPED = struct.Struct("<BBHII")
_LANE_DATA = struct.Struct("<BBHI")
_LANE_DATA_FOR_ATTENTION = (bytes([Kind.LANE_QUERY]), bytes([Kind.LANE_APPEND]))


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
        return COUNTED.pack(Kind.RETRACT, 0, self.step)

    @classmethod
    def decode(cls, payload: bytes) -> Retract:
        """Read the notice."""
        return cls(COUNTED.unpack_from(payload)[2])


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
