"""Figures as people read them."""

from __future__ import annotations

import pytest

from kernelflume.cli import tables
from kernelflume.rpc.v1 import scaler_pb2


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB"), (3 << 50, "3072.0 TiB")],
)
def test_sizes_are_for_people(num_bytes: int, text: str) -> None:
    assert tables.size(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "250 ms"), (1, "1.0 s"), (59.94, "59.9 s"), (90, "1.5 min"), (7200, "2.0 h")],
)
def test_times_are_for_people(seconds: float, text: str) -> None:
    assert tables.duration(seconds) == text


def test_a_share_of_nothing_is_a_dash() -> None:
    assert (tables.percent(1, 8), tables.percent(1, 0)) == ("12.5", "-")


def test_a_weight_node_that_decodes_nothing_has_no_step_time() -> None:
    assert (tables.step_time(0.0183), tables.step_time(0)) == ("18.3 ms", "-")


@pytest.mark.parametrize(
    ("state", "used", "threshold", "fill_s", "text"),
    [
        ("active", 10, 90, 5.0, "5.0 s"),
        ("active", 10, 90, 0.0, "-"),
        ("active", 95, 90, 0.0, "full"),
        ("active", 95, 0, 0.0, "-"),
        ("draining", 95, 90, 0.0, "-"),
    ],
)
def test_0_seconds_until_full_is_told_from_no_growth(
    state: str, used: int, threshold: int, fill_s: float, text: str
) -> None:
    node = scaler_pb2.AttentionNodeStatus(
        state=state, capacity_tokens=100, used_tokens=used, threshold_tokens=threshold, fill_seconds=fill_s
    )
    assert tables.fill_time(node) == text


def test_a_node_without_a_threshold_has_none_to_show() -> None:
    node = scaler_pb2.AttentionNodeStatus(capacity_tokens=100)
    assert tables.threshold_percent(node) == "-"
    node.threshold_tokens = 90
    assert tables.threshold_percent(node) == "90.0"
