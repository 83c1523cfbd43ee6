"""What every notice begins with."""

from __future__ import annotations

import struct
from enum import IntEnum

COUNTED = struct.Struct("<BxHI")
"""Kind, and up to two numbers: the head of the notices that need no more."""


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
