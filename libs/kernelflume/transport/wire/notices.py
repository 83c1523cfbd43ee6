"""Any notice, from its bytes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from kernelflume.core.errors import HandshakeError
from kernelflume.transport.wire.appends import Append, Appended
from kernelflume.transport.wire.blocks import Find, Found, Publish, Published, Share, Shared
from kernelflume.transport.wire.kinds import Kind
from kernelflume.transport.wire.paths import Warm
from kernelflume.transport.wire.queries import Partial, Query
from kernelflume.transport.wire.sequences import Free, Freed
from kernelflume.transport.wire.steps import LaneData, Retract, Step, Stepped

if TYPE_CHECKING:
    from collections.abc import Callable

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
