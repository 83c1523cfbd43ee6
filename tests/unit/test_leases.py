"""What nodes say of themselves is believed only as far as it can be true."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kernelflume.core.leases import LeaseRecord, NodeKind, NodeLoad
from kernelflume.core.profile import StepTimes

TIMES = StepTimes(
    rows=4, step_s=0.2, projection_s=1e-3, attention_s=1e-3, post_attention_s=1e-3, overhead_s=1e-2
)
LOAD = NodeLoad(
    adopted_epoch=7,
    prepared_nodes=("a-1#x",),
    num_requests_running=3,
    capacity_tokens=1000,
    used_tokens=500,
    reserved_tokens=512,
    tails=(("a-1", 3),),
    decode_step_s=0.2,
    step_times=TIMES,
    scan_bytes_per_s=1e9,
)
RECORD = LeaseRecord(kind=NodeKind.WEIGHT, node_id="w-1", incarnation="x", address="here:1", load=LOAD)


def read(fields: dict[str, Any]) -> tuple[LeaseRecord, tuple[str, ...]]:
    """Send the fields through the JSON of the store."""
    return LeaseRecord.from_dict(json.loads(json.dumps(fields)))


def test_a_record_is_read_back() -> None:
    assert read(RECORD.to_dict()) == (RECORD, ())


@pytest.mark.parametrize(
    ("figure", "lie"),
    [
        (figure, lie)
        for figure in ("used_tokens", "reserved_tokens", "adopted_epoch", "num_requests_running")
        for lie in (-1, 10**30, 1.5, float("nan"), float("inf"), "many", None, True)
    ]
    + [
        (figure, lie)
        for figure in ("decode_step_s", "scan_bytes_per_s")
        for lie in (-1.0, float("nan"), 1e300)
    ]
    + [("decode_step_s", 1e-300), ("tails", [["a-1", -1]]), ("tails", [["a-1", 2**40]])]
    + [
        ("step_times", TIMES_LIE)
        for TIMES_LIE in ({"step_s": float("nan")}, {"overhead_s": -1}, {"rows": -2})
    ],
)
def test_a_figure_that_cannot_be_is_left_out_and_named(figure: str, lie: Any) -> None:
    fields = RECORD.to_dict()
    fields["load"][figure] = {**fields["load"]["step_times"], **lie} if figure == "step_times" else lie
    default = getattr(NodeLoad(), figure)
    assert read(fields) == (replace(RECORD, load=replace(LOAD, **{figure: default})), (figure,))


def test_a_figure_of_a_newer_version_is_passed_over() -> None:
    fields = RECORD.to_dict()
    fields["load"]["mood"] = "fine"
    assert read(fields) == (RECORD, ())
