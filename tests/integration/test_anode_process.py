"""The attention node as it runs: two processes, gRPC, a real store, and NIXL."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, TypeVar, cast

import grpc
import psutil
import pytest
import torch
from tests.anode import GEOMETRY, Tokens
from tests.anode_process import MEMORY_BYTES, NodeProcess, running_node, wait_until, weight_node
from tests.valkey import PATIENCE_S, running_valkey

from kernelflume.core.leases import LeaseRecord, NodeKind
from kernelflume.rpc.v1 import anode_pb2
from kernelflume.store.redis import RedisStore
from kernelflume.tensor.reference import dense_attention
from kernelflume.transport import wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from tests.anode_process import LinkedWeightNode
    from tests.valkey import ValkeyProcess

    from kernelflume.core.geometry import KvGeometry

pytestmark = pytest.mark.redis

T = TypeVar("T")

CLUSTER = "test"
TIMES = ("--cluster", CLUSTER, "--lease-ttl-s", "0.9", "--link-grace-s", "1.0")
INTERPRETER_BYTES = 500 * 1024**2
"""Python with torch, nixl and UCX, generously."""


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyProcess]:
    with running_valkey() as server:
        yield server


@pytest.fixture(scope="module")
def node(server: ValkeyProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running_node(
        tmp_path_factory.mktemp("anode"), "--node-id", "a-7", "--redis-url", server.url, *TIMES
    ) as node:
        yield node


def with_store(server: ValkeyProcess, action: Callable[[RedisStore], Awaitable[T]]) -> T:
    async def run() -> T:
        store = RedisStore(server.url, cluster=CLUSTER, timeout_s=PATIENCE_S)
        try:
            return await action(store)
        finally:
            await store.close()

    return asyncio.run(run())


def hold_lease(server: ValkeyProcess, name: str, *, ttl_s: float) -> None:
    node_id, _, incarnation = name.partition("#")
    record = LeaseRecord(
        kind=NodeKind.WEIGHT, node_id=node_id, incarnation=incarnation, address="127.0.0.1:1"
    )
    with_store(server, lambda store: store.renew(record, ttl_s=ttl_s))


def lease_of(server: ValkeyProcess, node_id: str) -> LeaseRecord | None:
    records = with_store(server, lambda store: store.living(NodeKind.ATTENTION))
    return next((record for record in records if record.node_id == node_id), None)


def reported_load(server: ValkeyProcess, node_id: str, *, used_tokens: int) -> LeaseRecord:
    """Wait until a node's lease tells of so many tokens; a node on a busy machine may lose it for a while."""
    found: list[LeaseRecord] = []

    def is_told() -> bool:
        record = lease_of(server, node_id)
        if record is not None and record.load.used_tokens == used_tokens:
            found.append(record)
        return bool(found)

    wait_until(is_told, "the load is reported")
    return found[0]


def store_tokens(weight: LinkedWeightNode, sequence: int, num_tokens: int) -> Tokens:
    tokens = Tokens.random(GEOMETRY, num_tokens, torch.Generator().manual_seed(sequence))
    weight.append(tokens.rows(0, num_tokens), [(sequence, num_tokens, 0)])
    answer = weight.receive()
    assert isinstance(answer, wire.Appended)
    assert not answer.failed
    return tokens


def check_step(weight: LinkedWeightNode, sequence: int, tokens: Tokens, *, step: int) -> None:
    """Ask all layers of one row and compare with the oracle."""
    for layer in range(GEOMETRY.num_layers):
        queries = torch.randn(1, GEOMETRY.num_query_heads, GEOMETRY.head_dim)
        weight.query(queries, layer=layer, step=step, plan=[(sequence, 1, tokens.num_tokens)])
        answer = weight.receive()
        assert isinstance(answer, wire.Partial)
        assert (answer.layer, answer.step, answer.status) == (layer, step, wire.RowStatus.OK)
        expected = dense_attention(queries, tokens.keys[layer], tokens.values[layer])
        partial = weight.partial(1)
        torch.testing.assert_close(partial.out.double(), expected.out, rtol=0, atol=1e-5)
        torch.testing.assert_close(partial.lse.double(), expected.lse, rtol=0, atol=1e-5)


def links_of(node: NodeProcess) -> dict[str, int]:
    return {link.weight_node: link.num_tokens for link in node.statistics().links}


def test_the_life_of_a_sequence(node: NodeProcess, server: ValkeyProcess) -> None:
    hold_lease(server, "w-1#aa", ttl_s=600)
    with weight_node("w-1#aa") as weight:
        response = weight.link(node)
        assert response.handshake.node_name.startswith("a-7#")
        assert response.page_tokens == 64
        assert response.num_pages == MEMORY_BYTES // (64 * GEOMETRY.token_bytes)
        assert response.num_free_pages == response.num_pages
        weight.warm()
        assert weight.receive() == wire.Warm(answer=True, num_free_pages=response.num_pages)
        tokens = store_tokens(weight, 5, 16)
        check_step(weight, 5, tokens, step=1)
        statistics = node.statistics()
        assert statistics.node_id == "a-7"
        assert statistics.num_tokens == 16
        assert statistics.num_free_pages == response.num_pages - 1
        assert statistics.queries_served == GEOMETRY.num_layers
        assert statistics.tokens_appended == 16
        assert links_of(node) == {"w-1#aa": 16}
        record = reported_load(server, "a-7", used_tokens=16)
        assert record.address == f"127.0.0.1:{node.port}"
        assert record.incarnation == statistics.incarnation
        assert record.load.capacity_tokens == response.num_pages * 64
        assert record.load.num_sequences == 1
        weight.free(5)
        assert weight.receive() == wire.Freed(response.num_pages)
        assert node.statistics().num_tokens == 0
        answer = node.stub.Disconnect(anode_pb2.DisconnectRequest(weight_node="w-1#aa"), timeout=60)
        assert answer.num_sequences_freed == 0
        assert links_of(node) == {}


def test_a_disconnect_frees_what_was_held(node: NodeProcess, server: ValkeyProcess) -> None:
    hold_lease(server, "w-1#ab", ttl_s=600)
    with weight_node("w-1#ab") as weight:
        response = weight.link(node)
        store_tokens(weight, 5, 3)
        store_tokens(weight, 6, 3)
        answer = node.stub.Disconnect(anode_pb2.DisconnectRequest(weight_node="w-1#ab"), timeout=60)
        assert answer.num_sequences_freed == 2
        assert node.statistics().num_free_pages == response.num_pages
    with pytest.raises(grpc.RpcError) as failure:
        node.stub.Disconnect(anode_pb2.DisconnectRequest(weight_node="w-1#ab"), timeout=60)
    assert cast("Any", failure.value).code() is grpc.StatusCode.NOT_FOUND


def test_a_weight_node_that_restarts_replaces_itself(node: NodeProcess, server: ValkeyProcess) -> None:
    hold_lease(server, "w-2#bb", ttl_s=600)
    with weight_node("w-2#bb") as old, weight_node("w-2#cc") as new:
        old.link(node)
        store_tokens(old, 5, 3)
        hold_lease(server, "w-2#cc", ttl_s=600)
        new.link(node)
        assert links_of(node) == {"w-2#cc": 0}
        check_step(new, 5, store_tokens(new, 5, 4), step=1)


def test_two_weight_nodes_at_once(node: NodeProcess, server: ValkeyProcess) -> None:
    for name in ("w-3#aa", "w-4#aa"):
        hold_lease(server, name, ttl_s=600)
    with weight_node("w-3#aa") as one, weight_node("w-4#aa") as two:
        one.link(node)
        tokens_one = store_tokens(one, 5, 7)
        two.link(node)
        tokens_two = store_tokens(two, 5, 2)
        for step in range(3):
            check_step(one, 5, tokens_one, step=step)
            check_step(two, 5, tokens_two, step=step)


def test_a_lease_that_runs_out_frees_the_pages(node: NodeProcess, server: ValkeyProcess) -> None:
    for name in ("w-5#aa", "w-6#aa"):
        hold_lease(server, name, ttl_s=600)
    with weight_node("w-5#aa") as living, weight_node("w-6#aa") as dead:
        living.link(node)
        dead.link(node)
        tokens = store_tokens(living, 5, 7)
        store_tokens(dead, 5, 7)
        hold_lease(server, "w-6#aa", ttl_s=0.1)  # and never again
        wait_until(lambda: "w-6#aa" not in links_of(node), "the link ends")
        assert links_of(node)["w-5#aa"] == 7
        check_step(living, 5, tokens, step=1)


def refusal(node: NodeProcess, request: anode_pb2.ConnectRequest) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as failure:
        node.stub.Connect(request, timeout=60)
    error = cast("Any", failure.value)
    return error.code(), error.details()


def changed(geometry: KvGeometry = GEOMETRY, **fields: Any) -> KvGeometry:
    return dataclasses.replace(geometry, **fields)


@pytest.mark.parametrize(
    ("geometry", "message"),
    [
        (changed(num_layers=4), r"geometry.num_layers differs: a-7#.* has 3, w-8#aa has 4"),
        (changed(model_id="other"), r"geometry.model_id differs: a-7#.* has 'tiny', w-8#aa has 'other'"),
        (
            changed(kv_dtype="float8_e4m3fn"),
            r"geometry.kv_dtype differs: a-7#.* has 'float32', w-8#aa has 'float8_e4m3fn'",
        ),
    ],
)
def test_another_geometry_is_refused_with_both_sides_named(
    node: NodeProcess, geometry: KvGeometry, message: str
) -> None:
    with weight_node("w-8#aa", geometry) as weight:
        code, details = refusal(node, weight.request(node.name))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert re.search(message, details)
    assert "w-8#aa" not in links_of(node)


def test_another_mode_of_error_handling_is_refused(node: NodeProcess) -> None:
    with weight_node("w-8#ab", mode="none") as weight:
        code, details = refusal(node, weight.request(node.name))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "errors=peer" in details
    assert "errors=none" in details


def test_a_link_that_is_meant_for_another_node_leaves_the_present_one(
    node: NodeProcess, server: ValkeyProcess
) -> None:
    hold_lease(server, "w-7#ab", ttl_s=600)
    with weight_node("w-7#ab") as weight:
        weight.link(node)
        code, details = refusal(node, weight.request("a-9#00"))
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert node.name in details
        assert "a-9#00" in details
        assert weight.transport.name in [link.weight_node for link in node.statistics().links]


def test_bad_requests_are_refused_by_the_field_at_fault(node: NodeProcess, server: ValkeyProcess) -> None:
    hold_lease(server, "w-8#ac", ttl_s=600)
    with weight_node("w-8#ac") as weight:

        def broken(change: Callable[[anode_pb2.ConnectRequest], None]) -> tuple[grpc.StatusCode, str]:
            request = weight.request(node.name)
            change(request)
            return refusal(node, request)

        def set_lanes(request: anode_pb2.ConnectRequest) -> None:
            request.limits.num_lanes = 17

        def set_rows(request: anode_pb2.ConnectRequest) -> None:
            request.limits.max_rows = 8193

        def set_name(request: anode_pb2.ConnectRequest) -> None:
            request.handshake.node_name = "w-8"

        def set_region(request: anode_pb2.ConnectRequest) -> None:
            request.partial_regions[0].num_bytes -= 1

        def set_kind(request: anode_pb2.ConnectRequest) -> None:
            request.partial_regions[0].kind = "VRAM"

        invalid = grpc.StatusCode.INVALID_ARGUMENT
        assert broken(set_lanes) == (invalid, "num_lanes must be between 1 and 16, not 17")
        assert broken(set_rows) == (invalid, "max_rows must be between 1 and 8192, not 8193")
        assert broken(set_name) == (invalid, "node name 'w-8' is not node_id#incarnation")
        assert broken(set_region)[0] is invalid
        assert broken(set_kind) == (invalid, "partial regions must be DRAM for this node")

        def set_metadata(request: anode_pb2.ConnectRequest) -> None:
            request.transport_metadata = b"garbage"

        code, details = broken(set_metadata)
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "metadata of w-8#ac cannot be loaded" in details
        weight.link(node)
        assert links_of(node)["w-8#ac"] == 0


def test_the_node_holds_its_pool_and_no_weights(node: NodeProcess) -> None:
    statistics = node.statistics()
    expected = statistics.kv_bytes + statistics.buffer_bytes
    assert expected <= statistics.resident_bytes <= expected + INTERPRETER_BYTES
    assert statistics.kv_bytes <= MEMORY_BYTES
    for process in (psutil.Process(node.process.pid), node.worker):
        files = [mapped.path for mapped in process.memory_maps()] + [
            opened.path for opened in process.open_files()
        ]
        assert not [path for path in files if path.endswith((".safetensors", ".gguf", ".bin"))]


def test_garbage_on_the_data_path_costs_that_link_alone(node: NodeProcess, server: ValkeyProcess) -> None:
    for name in ("w-9#aa", "w-10#aa"):
        hold_lease(server, name, ttl_s=600)
    with weight_node("w-9#aa") as bad, weight_node("w-10#aa") as good:
        bad.link(node)
        good.link(node)
        tokens = store_tokens(good, 5, 3)
        bad.transport.notify(bad.node_name, b"\xffgarbage")

        def is_dropped() -> bool:
            bad.poll()  # progress: without it the notice would not leave
            return "w-9#aa" not in links_of(node)

        wait_until(is_dropped, "the link is dropped")
        check_step(good, 5, tokens, step=1)


def test_sigterm_ends_the_node_and_its_lease(server: ValkeyProcess, tmp_path: Path) -> None:
    with running_node(tmp_path, "--node-id", "a-8", "--redis-url", server.url, *TIMES) as node:
        worker = node.worker
        wait_until(lambda: lease_of(server, "a-8") is not None, "the lease is held")
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(60) == 0
        assert lease_of(server, "a-8") is None
        wait_until(lambda: not worker.is_running(), "the worker has ended")


def test_a_worker_that_dies_ends_the_node_with_a_clear_error(server: ValkeyProcess, tmp_path: Path) -> None:
    with running_node(tmp_path, "--redis-url", server.url, *TIMES) as node:
        node.worker.kill()
        assert node.process.wait(60) == 1
        assert "the worker process ended with code -9" in node.log.splitlines()[-1]


def test_the_worker_ends_with_its_shell(tmp_path: Path) -> None:
    # No store can be reached here, which keeps the node from nothing but its lease.
    with running_node(tmp_path, "--redis-url", "redis://127.0.0.1:9/0", *TIMES) as node:
        worker = node.worker
        wait_until(lambda: "the lease cannot be renewed" in node.log, "the node misses the store")
        os.kill(node.process.pid, signal.SIGKILL)
        wait_until(
            lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE, "the worker ends"
        )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--geometry (or KERNELFLUME_ANODE_GEOMETRY) is required"),
        (["--geometry", "{"], "--geometry: geometry is no JSON"),
        (["--geometry", "{}"], "--geometry: geometry needs "),
    ],
)
def test_a_bad_setting_refuses_the_start(flags: list[str], message: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "kernelflume.anode", *flags], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert message in result.stderr


def test_the_shell_loads_no_torch() -> None:
    program = "import sys, kernelflume.anode.shell; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
