"""A real attention node in its own processes, and a scripted weight node that links to it over NIXL."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kernelflume.core.handshake import Handshake
from kernelflume.core.names import node_name
from kernelflume.rpc.channel import open_blocking_channel
from kernelflume.rpc.codec import handshake_to_proto, region_from_proto, region_to_proto
from kernelflume.rpc.v1 import anode_pb2, anode_pb2_grpc
from kernelflume.runtime.service import free_port
from kernelflume.transport.doorbell import Doorbell, parse_address
from kernelflume.transport.nixl import NixlTransport
from tests.anode import GEOMETRY, WeightNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kernelflume.core.geometry import KvGeometry
    from kernelflume.transport import wire

DEADLINE_S = 240.0
MEMORY_BYTES = 64 * 1024**2


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Ask again and again until a condition holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {DEADLINE_S:g} s")
        time.sleep(0.02)


@dataclass
class NodeProcess:
    process: subprocess.Popen[bytes]
    log_path: Path
    port: int
    channel: grpc.Channel

    @property
    def stub(self) -> anode_pb2_grpc.AttentionNodeStub:
        return anode_pb2_grpc.AttentionNodeStub(self.channel)

    @property
    def name(self) -> str:
        statistics = self.statistics()
        return node_name(statistics.node_id, statistics.incarnation)

    @property
    def worker(self) -> psutil.Process:
        (worker,) = psutil.Process(self.process.pid).children()
        return worker

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def is_serving(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"the node ended with code {self.process.returncode}: {self.log}")
        try:
            answer = health_pb2_grpc.HealthStub(self.channel).Check(
                health_pb2.HealthCheckRequest(service="kernelflume.rpc.v1.AttentionNode"), timeout=30
            )
        except grpc.RpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def statistics(self) -> anode_pb2.AttentionStatistics:
        statistics: anode_pb2.AttentionStatistics = self.stub.GetStatistics(
            anode_pb2.GetAttentionStatisticsRequest(), timeout=60
        )
        return statistics


@contextmanager
def running_node(directory: Path, *flags: str, geometry: KvGeometry = GEOMETRY) -> Iterator[NodeProcess]:
    """Start a node and wait until it serves; it is killed at the end if it still runs."""
    port = free_port()
    command = [
        sys.executable, "-m", "kernelflume.anode", "--address", f"127.0.0.1:{port}",
        "--memory", str(MEMORY_BYTES), "--geometry", json.dumps(geometry.to_dict()), *flags,
    ]  # fmt: skip
    log_path = directory / f"anode-{port}.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    with open_blocking_channel(f"127.0.0.1:{port}") as channel:
        node = NodeProcess(process, log_path, port, channel)
        try:
            wait_until(node.is_serving, "the attention node serves")
            yield node
        finally:
            process.kill()
            process.wait()


class LinkedWeightNode(WeightNode):
    """A weight node over NIXL with a doorbell, linked by gRPC."""

    def __init__(self, name: str, geometry: KvGeometry = GEOMETRY, *, mode: str = "peer") -> None:
        super().__init__(NixlTransport(name, error_handling=mode), geometry)
        self.bell = Doorbell()
        self._target = ("", 0)

    def request(self, attention_node: str) -> anode_pb2.ConnectRequest:
        handshake = Handshake(
            node_name=self.transport.name, geometry=self.geometry, transport=self.transport.kind
        )
        return anode_pb2.ConnectRequest(
            handshake=handshake_to_proto(handshake),
            transport_metadata=self.transport.metadata(),
            limits=anode_pb2.LaneLimits(num_lanes=self.num_lanes, max_rows=self.layout.max_rows),
            partial_regions=[region_to_proto(region) for region in self.partial_regions],
            doorbell_address=self.bell.address,
            attention_node=attention_node,
        )

    def link(self, node: NodeProcess) -> anode_pb2.ConnectResponse:
        response: anode_pb2.ConnectResponse = node.stub.Connect(self.request(node.name), timeout=60)
        self.connect(
            response.handshake.node_name,
            response.transport_metadata,
            [region_from_proto(region) for region in response.query_regions],
            [region_from_proto(region) for region in response.append_regions],
        )
        self._target = parse_address(response.doorbell_address)
        return response

    def receive(self) -> wire.WireNotice:
        """Ring the node, and wait for its next notice."""
        self.bell.ring(self._target)

        def has_come() -> bool:
            self.received += self.poll()
            return bool(self.received)

        wait_until(has_come, "the attention node answers")
        return self.received.pop(0)

    def close(self) -> None:
        self.transport.close()
        self.bell.close()


@contextmanager
def weight_node(
    name: str, geometry: KvGeometry = GEOMETRY, *, mode: str = "peer"
) -> Iterator[LinkedWeightNode]:
    node = LinkedWeightNode(name, geometry, mode=mode)
    try:
        yield node
    finally:
        node.close()
