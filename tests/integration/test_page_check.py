"""`kernelflume status --check` and a real attention node; scaler and weight nodes say what they are told."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import grpc
import pytest
import torch
from tests.anode import GEOMETRY, Tokens
from tests.anode_process import running_node, wait_until, weight_node
from tests.valkey import running_valkey

from kernelflume.core.blocks import KEY_BYTES
from kernelflume.core.names import split_name
from kernelflume.rpc.v1 import common_pb2, scaler_pb2, scaler_pb2_grpc, wnode_pb2, wnode_pb2_grpc
from kernelflume.runtime.service import free_port
from kernelflume.transport import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.anode_process import LinkedWeightNode, NodeProcess

pytestmark = pytest.mark.redis

NUM_TOKENS = 3 * 16
FIRST, SECOND = "w-1#aa", "w-2#bb"
COMMAND = (sys.executable, "-m", "kernelflume.cli.main", "status", "--check", "--scaler")


@dataclass
class ToldWeightNode(wnode_pb2_grpc.WeightNodeServicer):
    """Says that it runs these sequences, each of so many tokens on the one attention node."""

    name: str
    running: dict[int, int]
    address: str = ""

    def ListSequences(  # noqa: N802 - gRPC's name
        self, request: wnode_pb2.ListSequencesRequest, context: Any
    ) -> wnode_pb2.ListSequencesResponse:
        return wnode_pb2.ListSequencesResponse(
            sequences=[
                wnode_pb2.SequenceStatus(sequence_id=sequence, state="running", ranges=spans(num_tokens))
                for sequence, num_tokens in self.running.items()
            ]
        )


@dataclass
class ToldScaler(scaler_pb2_grpc.ScalerAdminServicer):
    """Says that the table has the routes that the weight nodes run."""

    node: NodeProcess
    weights: list[ToldWeightNode]
    num_looks: int = 0
    before_second_look: Callable[[], object] = field(default=lambda: None)

    def GetTopology(  # noqa: N802 - gRPC's name
        self, request: scaler_pb2.GetTopologyRequest, context: Any
    ) -> scaler_pb2.Topology:
        self.num_looks += 1
        if self.num_looks == 2:
            self.before_second_look()
        return scaler_pb2.Topology(
            attention_nodes=[
                scaler_pb2.AttentionNodeStatus(node_id="a-7", address=f"127.0.0.1:{self.node.port}")
            ],
            weight_nodes=[
                scaler_pb2.WeightNodeStatus(
                    node_id=split_name(weight.name)[0],
                    incarnation=split_name(weight.name)[1],
                    address=weight.address,
                )
                for weight in self.weights
            ],
            sequences=[
                scaler_pb2.SequenceRouteStatus(
                    weight_node=weight.name, sequence_id=sequence, ranges=spans(num_tokens)
                )
                for weight in self.weights
                for sequence, num_tokens in weight.running.items()
            ],
        )


def spans(num_tokens: int) -> list[common_pb2.OwnedRange]:
    return [common_pb2.OwnedRange(node_id="a-7", start=0, end=num_tokens)]


@contextmanager
def serving(add: Callable[[grpc.Server], None]) -> Iterator[str]:
    """Serve something, and give its address."""
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        add(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(0).wait()


@dataclass
class Cluster:
    """Two weight nodes, of which the second shares what the first has named."""

    node: NodeProcess
    first: LinkedWeightNode
    second: LinkedWeightNode
    scaler: ToldScaler
    address: str

    def check(self, *flags: str) -> subprocess.CompletedProcess[str]:
        command = (*COMMAND, self.address, *flags)
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, metrics_port: int) -> Iterator[NodeProcess]:
    with (
        running_valkey() as server,
        running_node(
            tmp_path_factory.mktemp("anode"), "--node-id", "a-7", "--redis-url", server.url,
            "--page-tokens", "16", "--link-grace-s", "600", "--load-interval-s", "0.1",
            "--metrics-port", str(metrics_port),
        ) as node,
    ):  # fmt: skip
        yield node


@pytest.fixture
def cluster(node: NodeProcess) -> Iterator[Cluster]:
    """Sequence 1 of the first has three pages, which sequence 1 of the second shares; one page is cached."""
    # Names of their own, as what an earlier test has named is found otherwise.
    blocks = [(secrets.token_bytes(KEY_BYTES), 16 * number, 16) for number in range(4)]
    told = [ToldWeightNode(FIRST, {1: NUM_TOKENS}), ToldWeightNode(SECOND, {1: NUM_TOKENS})]
    scaler = ToldScaler(node, told)
    with ExitStack() as stack:
        first, second = (stack.enter_context(weight_node(name)) for name in (FIRST, SECOND))
        num_pages = 0
        for weight in (first, second):
            num_pages = weight.link(node).num_pages
            weight.warm()
            weight.receive()
        tokens = Tokens.random(GEOMETRY, 16, torch.Generator().manual_seed(1))
        for start in (0, 16, 32):
            first.append(tokens.rows(0, 16), [(1, 16, start)])
            assert isinstance(first.receive(), wire.Appended)
        first.publish(1, blocks[:3])
        assert first.receive() == wire.Published(1, 3, num_pages - 3)
        second.share(1, blocks[:3])
        assert second.receive() == wire.Shared(1, 3, num_pages - 3)
        first.append(tokens.rows(0, 16), [(2, 16, 48)])
        assert isinstance(first.receive(), wire.Appended)
        first.publish(2, blocks[3:])
        assert isinstance(first.receive(), wire.Published)
        first.free(2)
        assert first.receive() == wire.Freed(num_pages - 3)
        for item in told:
            item.address = stack.enter_context(
                serving(partial(wnode_pb2_grpc.add_WeightNodeServicer_to_server, item))
            )
        address = stack.enter_context(
            serving(partial(scaler_pb2_grpc.add_ScalerAdminServicer_to_server, scaler))
        )
        yield Cluster(node, first, second, scaler, address)


def test_a_sound_cluster_is_looked_at_once(cluster: Cluster) -> None:
    result = cluster.check()
    assert result.returncode == 0, result.stderr
    assert ": 3 held by 2 sequence(s), " in result.stdout
    assert " 0 cached" not in result.stdout
    assert result.stdout.endswith("every page is accounted for\n")
    assert cluster.scaler.num_looks == 1


def test_what_lasts_is_told_and_ends_in_exit_code_1(cluster: Cluster) -> None:
    cluster.scaler.weights[1].running = {7: 16}
    result = cluster.check("--json")
    assert result.returncode == 1
    faults = [(fault["kind"], fault["detail"]) for fault in json.loads(result.stdout)["faults"]]
    assert faults == [
        ("left over", f"sequence 1 of {SECOND}"),
        ("not held", f"sequence 7 of {SECOND} has [0,16) by its weight node"),
    ]
    assert cluster.scaler.num_looks == 2
    text = cluster.check().stdout
    assert f"  a-7: left over: sequence 1 of {SECOND}" in text.splitlines()
    assert "wrong in two looks 3 s apart" in text


def test_what_moves_meanwhile_is_no_fault(cluster: Cluster) -> None:
    cluster.scaler.weights[0].running = {1: NUM_TOKENS + 16}

    def move() -> None:
        cluster.scaler.weights[0].running = {1: NUM_TOKENS}

    cluster.scaler.before_second_look = move
    result = cluster.check()
    assert result.returncode == 0, result.stdout
    assert cluster.scaler.num_looks == 2


def test_a_weight_node_without_a_lease_is_named(cluster: Cluster) -> None:
    cluster.scaler.weights.pop()
    result = cluster.check()
    assert result.returncode == 1
    assert f"a-7: dead weight node: sequence 1 of {SECOND}" in result.stdout


def test_a_node_that_does_not_answer_is_named(cluster: Cluster) -> None:
    cluster.scaler.weights[0].address = f"127.0.0.1:{free_port()}"
    result = cluster.check()
    assert result.returncode == 1
    assert f"{FIRST} cannot be asked for what it holds" in result.stderr


def test_figures_of_the_process(cluster: Cluster, metrics_port: int) -> None:
    statistics = cluster.node.statistics()
    assert statistics.num_cached_pages >= 1
    assert statistics.num_cached_tokens == 16 * statistics.num_cached_pages
    assert statistics.num_tokens == NUM_TOKENS
    assert statistics.tokens_shared >= NUM_TOKENS

    def is_told() -> bool:
        with urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=60) as answer:
            return 'kernelflume_kv_pages{state="held"} 3.0' in answer.read().decode()

    wait_until(is_told, "the metrics follow")
