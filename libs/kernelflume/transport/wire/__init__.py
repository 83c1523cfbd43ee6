"""The notices that weight and attention nodes exchange; every one fits a single message.

A weight node sends WARM, QUERY, APPEND, FREE, FIND, SHARE, PUBLISH, STEP and RETRACT; an attention node
answers WARMED, PARTIAL, APPENDED, FREED, FOUND, SHARED, PUBLISHED and STEPPED. Tensors travel by the write
that a notice rides on; those of a STEP by kernels, or by writes with LANE_QUERY, LANE_APPEND and LANE_PARTIAL
on the host path.
Version: ``core.handshake.PROTOCOL_VERSION``.

Order is never assumed. A QUERY names the append counter that must have been filed before it is computed; a
PARTIAL names step and layer; a FREE that comes late only frees late.
"""

from kernelflume.transport.wire.appends import APPEND_DTYPE, Append, Appended
from kernelflume.transport.wire.blocks import (
    BLOCK_DTYPE,
    MAX_BLOCKS,
    Find,
    Found,
    Publish,
    Published,
    Share,
    Shared,
)
from kernelflume.transport.wire.kinds import Kind
from kernelflume.transport.wire.notices import WireNotice, decode
from kernelflume.transport.wire.paths import Warm
from kernelflume.transport.wire.queries import PLAN_DTYPE, Partial, Query, RowStatus
from kernelflume.transport.wire.sequences import MAX_FREE, Free, Freed
from kernelflume.transport.wire.steps import LaneData, LaneStep, Retract, Step, Stepped, is_lane_data

__all__ = [
    "APPEND_DTYPE",
    "BLOCK_DTYPE",
    "MAX_BLOCKS",
    "MAX_FREE",
    "PLAN_DTYPE",
    "Append",
    "Appended",
    "Find",
    "Found",
    "Free",
    "Freed",
    "Kind",
    "LaneData",
    "LaneStep",
    "Partial",
    "Publish",
    "Published",
    "Query",
    "Retract",
    "RowStatus",
    "Share",
    "Shared",
    "Step",
    "Stepped",
    "Warm",
    "WireNotice",
    "decode",
    "is_lane_data",
]
