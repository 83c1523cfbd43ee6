"""The queries of a step, and the partials that answer them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from kernelflume.transport.wire.kinds import Kind

PLAN_DTYPE = np.dtype([("sequence", "<u8"), ("num_rows", "<u4"), ("num_held", "<u4")])
"""One sequence of a step: how many consecutive rows are its own, and how many tokens the node must hold."""
_QUERY = struct.Struct("<BBHIIHH")
_PARTIAL = struct.Struct("<BBHIBxHI")


class RowStatus(IntEnum):
    """Outcome of a QUERY as a whole."""

    OK = 0
    MISMATCH = 1
    """The node does not hold what the plan says of some sequence: its outputs must not be used."""


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
