from __future__ import annotations

import pytest

from kernelflume.scaler.command import device_of


@pytest.mark.parametrize(
    ("node_id", "device"), [("a-1", "cuda:1"), ("a-2", "cuda:2"), ("a-3", "cuda:1"), ("spare", "cuda:1")]
)
def test_nodes_get_the_devices_in_turn(node_id: str, device: str) -> None:
    assert device_of(node_id, ["cuda:1", "cuda:2"]) == device


def test_without_devices_a_node_has_its_own_setting() -> None:
    assert device_of("a-1", []) == ""
