from __future__ import annotations

from dataclasses import fields
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelflume.core.errors import HandshakeError
from kernelflume.core.retention import Pinning, Retention
from kernelflume.transport import wire

PLAN = np.array([(1, 1, 700), (2**40, 31, 0)], wire.PLAN_DTYPE)
ENTRIES = np.array([(7, 1, 700), (8, 2, 0), (7, 1, 701)], wire.APPEND_DTYPE)
BLOCKS = np.array([(b"k" * 16, 0, 64), (b"\0" * 16, 64, 64), (b"\xff" * 16, 2**32 - 1, 1)], wire.BLOCK_DTYPE)

NOTICES: list[wire.WireNotice] = [
    wire.Warm(answer=False),
    wire.Warm(answer=True, num_free_pages=12),
    wire.Query(lane=3, layer=0, step=9, appends=4, num_rows=32, plan=PLAN),
    wire.Query(lane=0, layer=29, step=2**32 - 1, appends=0, num_rows=8192, plan=None),
    wire.Append(lane=15, slot=1, counter=2**32 - 1, num_rows=4, entries=ENTRIES),
    wire.Partial(lane=1, layer=2, step=3, status=wire.RowStatus.OK, num_rows=4, num_free_pages=5),
    wire.Partial(lane=1, layer=2, step=3, status=wire.RowStatus.MISMATCH, num_rows=4, num_free_pages=5),
    wire.Appended(lane=1, slot=0, counter=6, num_free_pages=7),
    wire.Appended(lane=1, slot=0, counter=6, num_free_pages=0, failed=(3, 2**63)),
    wire.Free(sequences=()),
    wire.Free(sequences=tuple(range(wire.MAX_FREE))),
    wire.Freed(num_free_pages=2**32 - 1),
    wire.Step(step=5, appends=4, lanes=(wire.LaneStep(PLAN, ENTRIES), wire.LaneStep(PLAN[:0], ENTRIES[:1]))),
    wire.Step(step=2**32 - 1, appends=0, lanes=(wire.LaneStep(PLAN, ENTRIES[:0]),)),
    wire.Stepped(step=5, status=wire.RowStatus.OK, num_free_pages=3, failed=(9, 2**40)),
    wire.Stepped(step=5, status=wire.RowStatus.MISMATCH, num_free_pages=3),
    wire.Retract(step=2**32 - 1),
    wire.Find(number=2**32 - 1, keys=BLOCKS["key"]),
    wire.Found(number=7, is_here=np.array([True, False, True, True, False, False, True, True, True])),
    wire.Share(sequence=2**63, blocks=BLOCKS),
    wire.Share(sequence=1, blocks=BLOCKS, pinning=Pinning(Retention.DAY, 2**32 - 1)),
    wire.Shared(sequence=2**63, num_blocks=2, num_free_pages=9),
    wire.Publish(sequence=2**63, appends=2**32 - 1, blocks=BLOCKS[1:]),
    wire.Publish(sequence=2**63, appends=7, blocks=BLOCKS, pinning=Pinning(Retention.IN_MEMORY, 9)),
    wire.Published(sequence=3, num_blocks=512, num_free_pages=2**32 - 1),
    wire.LaneData(wire.Kind.LANE_QUERY, lane=1, layer=126, step=2**32 - 1),
    wire.LaneData(wire.Kind.LANE_APPEND, lane=0, layer=0, step=7),
    wire.LaneData(wire.Kind.LANE_PARTIAL, lane=3, layer=31, step=7),
]


def values(notice: wire.WireNotice) -> dict[str, object]:
    """Fields as comparable values."""
    plain = {field.name: getattr(notice, field.name) for field in fields(notice)}
    return {name: plain_value(value) for name, value in plain.items()}


def plain_value(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [plain_value(part) for part in value] if isinstance(value, tuple) else value


@pytest.mark.parametrize("notice", NOTICES, ids=lambda notice: type(notice).__name__)
def test_a_notice_survives_the_wire(notice: wire.WireNotice) -> None:
    read = wire.decode(notice.encode())
    assert type(read) is type(notice)
    assert values(read) == values(notice)


@pytest.mark.parametrize("notice", NOTICES, ids=lambda notice: type(notice).__name__)
def test_a_truncated_notice_is_refused(notice: wire.WireNotice) -> None:
    payload = notice.encode()
    with pytest.raises(HandshakeError, match="unreadable notice"):
        wire.decode(payload[:-1])


@pytest.mark.parametrize("payload", [b"", b"\0", b"\xff" * 20, b"\x03", b"GET / HTTP/1.1"])
def test_bytes_of_another_protocol_are_refused(payload: bytes) -> None:
    with pytest.raises(HandshakeError):
        wire.decode(payload)


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(payload: bytes) -> None:
    try:
        notice = wire.decode(payload)
    except HandshakeError:
        return
    assert notice.encode()[0] == payload[0]


def test_a_partial_of_an_unknown_status_is_refused() -> None:
    payload = bytearray(NOTICES[5].encode())
    payload[8] = 9
    with pytest.raises(HandshakeError):
        wire.decode(bytes(payload))


def test_an_unknown_retention_is_refused() -> None:
    payload = bytearray(wire.Publish(sequence=1, appends=0, blocks=BLOCKS).encode())
    payload[1] = 3
    with pytest.raises(HandshakeError, match="3 stands for no retention"):
        wire.decode(bytes(payload))


def test_what_a_graph_waits_for_is_known_by_its_first_byte() -> None:
    waited_for = [notice for notice in NOTICES if wire.is_lane_data(notice.encode())]
    assert {type(notice) for notice in waited_for} == {wire.LaneData}
    assert wire.Kind.LANE_PARTIAL not in {cast("wire.LaneData", notice).kind for notice in waited_for}
    assert not wire.is_lane_data(b"")
