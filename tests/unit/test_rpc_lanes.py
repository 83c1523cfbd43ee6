"""How the lanes of captured graphs travel in the handshake."""

from __future__ import annotations

import pytest

from kernelflume.core.regions import DeviceLanes, LanePath, MemoryRegion
from kernelflume.rpc.codec import device_lanes_of, device_lanes_to_proto
from kernelflume.rpc.v1 import anode_pb2

REGION = MemoryRegion(0x7F00, 64, "VRAM", 1)


@pytest.mark.parametrize("path", LanePath)
def test_lanes_travel_with_their_path(path: LanePath) -> None:
    lanes = DeviceLanes(8, "local", ((REGION,), (REGION,)), path)
    message = anode_pb2.ConnectRequest(device_lanes=device_lanes_to_proto(lanes))
    assert device_lanes_of(message) == lanes


def test_no_lanes_mean_the_posted_path_and_no_path_means_the_device_s() -> None:
    assert device_lanes_of(anode_pb2.ConnectRequest(device_lanes=device_lanes_to_proto(None))) is None
    unnamed = anode_pb2.DeviceLanes(max_rows=8, query_first="off")
    found = device_lanes_of(anode_pb2.ConnectResponse(device_lanes=unnamed))
    assert found == DeviceLanes(8, "off", (), LanePath.DEVICE)
