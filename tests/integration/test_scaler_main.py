"""The scaler as a process: its flags, its gRPC service, its children, its end."""

from __future__ import annotations

import asyncio
import os
import signal
import urllib.request
from contextlib import suppress
from typing import TYPE_CHECKING

import grpc
import psutil
import pytest
from tests.scaler_process import GEOMETRY, TAKEN_OVER, active_nodes, address_of, running_scaler, write_anew
from tests.scaler_rig import CLUSTER, WAIT_S, FakeWeightNode, eventually, route_on

from kernelflume.core.leases import NodeKind
from kernelflume.rpc.channel import open_channel
from kernelflume.rpc.v1 import scaler_pb2, scaler_pb2_grpc
from kernelflume.runtime.service import free_port
from kernelflume.scaler.waiting import is_serving
from kernelflume.store.redis import RedisStore

if TYPE_CHECKING:
    import subprocess
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.valkey import ValkeyProcess

pytestmark = pytest.mark.redis


@pytest.fixture
async def store(valkey_url: str) -> AsyncIterator[RedisStore]:
    store = RedisStore(valkey_url, cluster=CLUSTER, timeout_s=WAIT_S)
    yield store
    await store.close()


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S) as answer:
        return str(answer.read().decode())


def children_of(scaler: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(scaler.pid).children()


async def test_a_life_of_a_scaler_with_processes(store: RedisStore, valkey_url: str, tmp_path: Path) -> None:
    metrics_port = free_port()
    flags = ("--attention-nodes", "1", "--metrics-port", str(metrics_port))
    with running_scaler(valkey_url, tmp_path, *flags) as scaler:
        assert await active_nodes(store, 1) == ["a-1"]
        async with open_channel(await address_of(store)) as channel:
            stub = scaler_pb2_grpc.ScalerAdminStub(channel)

            request = scaler_pb2.SetTargetRequest(operation_id="up", attention_nodes=2)
            begun = await stub.SetTarget(request, timeout=WAIT_S)
            assert (begun.phase, begun.result, begun.initial_attention_nodes) == ("launching", "", 1)
            named = scaler_pb2.GetOperationRequest(operation_id="up")
            watched = [operation async for operation in stub.WatchOperation(named, timeout=WAIT_S)]
            assert [span.phase for span in watched[-1].history] == [
                "launching",
                "prewarming",
                "ready",
                "publishing",
                "done",
            ]
            assert (watched[-1].result, list(watched[-1].node_ids)) == ("succeeded", ["a-2"])
            assert await stub.SetTarget(request, timeout=WAIT_S) == watched[-1]
            other = scaler_pb2.SetTargetRequest(operation_id="up", attention_nodes=3)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.SetTarget(other, timeout=WAIT_S)
            assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS

            # Routes of a weight node without a lease would be dropped.
            weight = FakeWeightNode("w-1", store)
            await weight.start()
            await store.put_routes(weight.name, {4: route_on("a-1", "a-2")})
            topology = await stub.GetTopology(scaler_pb2.GetTopologyRequest(), timeout=WAIT_S)
            assert topology.epoch == (await store.read()).epoch
            assert topology.target_attention_nodes == 2
            assert topology.operation == watched[-1]
            assert [(node.node_id, node.state, node.alive) for node in topology.attention_nodes] == [
                ("a-1", "active", True),
                ("a-2", "active", True),
            ]
            assert topology.attention_nodes[0].capacity_tokens == 1000
            assert topology.attention_nodes[0].kv_bytes_per_token == GEOMETRY.token_bytes
            (route,) = topology.sequences
            assert (route.weight_node, route.sequence_id) == (weight.name, 4)
            assert [(owned.node_id, owned.start, owned.end) for owned in route.ranges] == [
                ("a-1", 0, 3),
                ("a-2", 3, 6),
            ]
            await weight.die()

            victim = next(child for child in children_of(scaler) if "a-1" in child.cmdline())
            os.kill(victim.pid, signal.SIGKILL)

            async def replaced() -> bool:
                return [node.node_id for node in (await store.read()).nodes] == ["a-2", "a-3"]

            await eventually(replaced)
            assert await active_nodes(store, 2) == ["a-2", "a-3"]

            async def is_counted() -> bool:
                text = await asyncio.to_thread(scrape, metrics_port)
                epoch = (await store.read()).epoch
                removed = 'kernelflume_attention_nodes_removed_total{reason="process_ended"} 1.0'
                return removed in text and f"kernelflume_routing_epoch {float(epoch)}" in text

            await eventually(is_counted)

        children = children_of(scaler)
        assert len(children) == 2
        scaler.terminate()
        assert scaler.wait(timeout=WAIT_S) == 0
        assert not any(child.is_running() for child in children)
        assert await store.living(NodeKind.SCALER) == []
        assert await store.lead("another", ttl_s=1) is not None


async def test_a_node_that_cannot_start_is_told_with_its_last_words(
    store: RedisStore, valkey_url: str, tmp_path: Path
) -> None:
    flags = ("--attention-nodes", "1", "--attention-node-args=--fail=no room for the pool")
    with running_scaler(valkey_url, tmp_path, *flags):
        async with open_channel(await address_of(store)) as channel:
            stub = scaler_pb2_grpc.ScalerAdminStub(channel)
            topology = scaler_pb2.Topology()

            async def failed() -> bool:
                nonlocal topology
                topology = await stub.GetTopology(scaler_pb2.GetTopologyRequest(), timeout=WAIT_S)
                return bool(topology.operation.result == "failed")

            await eventually(failed)
            reason = topology.operation.reason
            assert "attention node a-" in reason
            assert "ended with code 3: no room for the pool" in reason
            assert topology.target_attention_nodes == 1
            assert list(topology.attention_nodes) == []


async def test_a_standby_takes_over_when_the_leader_is_killed(
    store: RedisStore, valkey_url: str, tmp_path: Path
) -> None:
    with running_scaler(valkey_url, tmp_path / "first", "--attention-nodes", "1", *TAKEN_OVER) as leader:
        await active_nodes(store, 1)
        with running_scaler(valkey_url, tmp_path / "second", "--node-id", "s-2", *TAKEN_OVER):
            async with open_channel(await address_of(store, "s-2")) as channel:
                stub = scaler_pb2_grpc.ScalerAdminStub(channel)
                topology = await stub.GetTopology(scaler_pb2.GetTopologyRequest(), timeout=WAIT_S)
                assert [node.node_id for node in topology.attention_nodes] == ["a-1"]
                request = scaler_pb2.SetTargetRequest(operation_id="up", attention_nodes=2)
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await stub.SetTarget(request, timeout=WAIT_S)
                assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
                assert "standby" in (refused.value.details() or "")
                leader.kill()
                # Its node ended with it, and gave its lease up on the way: the standby starts another one.

                async def taken_over() -> bool:
                    return [node.node_id for node in (await store.read()).nodes] == ["a-2"]

                await eventually(taken_over)
                await active_nodes(store, 1)


def test_a_scaler_without_a_store_says_so_and_ends(valkey: ValkeyProcess, tmp_path: Path) -> None:
    valkey.kill()
    with running_scaler(valkey.url, tmp_path, "--store-timeout-s", "0.3") as scaler:
        assert scaler.wait(timeout=WAIT_S) == 1
    assert f"routing-table store {valkey.url}: cannot" in (tmp_path / "scaler.log").read_text()


def test_a_taken_address_is_a_clear_refusal(valkey_url: str, tmp_path: Path, valkey: ValkeyProcess) -> None:
    with running_scaler(valkey_url, tmp_path, "--address", f"127.0.0.1:{valkey.port}") as scaler:
        assert scaler.wait(timeout=WAIT_S) == 2
    assert f"cannot listen on 127.0.0.1:{valkey.port}" in (tmp_path / "scaler.log").read_text()


async def test_provider_settings_of_the_policy_take_force_while_the_scaler_runs(
    store: RedisStore, valkey_url: str, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("automatic: false\nprovider: {node_memory: 1MiB}\n")
    flags = ("--attention-nodes", "1", "--attention-node-memory", "3MiB", "--policy-file", str(policy))
    with running_scaler(valkey_url, tmp_path, *flags) as scaler:
        await active_nodes(store, 1)

        def memories() -> list[int]:
            found = []
            for child in children_of(scaler):
                with suppress(psutil.Error):  # it ends just now
                    line = child.cmdline()
                    found += [int(line[line.index("--memory") + 1])] if "--memory" in line else []
            return sorted(found)

        assert memories() == [1024**2]
        write_anew(policy, "automatic: false\nprovider: {node_memory: 2MiB, standby_nodes: 1}\n")

        async def stands_by() -> bool:
            return memories() == [1024**2, 2 * 1024**2]

        await eventually(stands_by)
        async with open_channel(await address_of(store)) as channel:
            stub = scaler_pb2_grpc.ScalerAdminStub(channel)
            request = scaler_pb2.SetPolicyRequest(yaml="provider: {kind: static}")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.SetPolicy(request, timeout=WAIT_S)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "provider.kind: cannot be changed from process to static" in (
                refused.value.details() or ""
            )
            await stub.SetPolicy(scaler_pb2.SetPolicyRequest(yaml="automatic: false"), timeout=WAIT_S)

            async def ended() -> bool:
                return memories() == [1024**2]

            await eventually(ended)


async def test_a_damaged_table_is_told_with_its_remedy_which_works(
    store: RedisStore, valkey_url: str, tmp_path: Path
) -> None:
    key = f"{{{CLUSTER}}}:v1:table"
    weight = FakeWeightNode("w-1", store)
    with running_scaler(valkey_url, tmp_path, "--attention-nodes", "1"):
        await active_nodes(store, 1)
        await weight.start()
        good = await store.read()
        await eventually(lambda: has_adopted(weight, good.epoch))
        address = await address_of(store)
        await eventually(lambda: is_serving(address))
        await store._redis.hset(key, "snapshot", "{")

        async def not_ready() -> bool:
            return not await is_serving(address)

        await eventually(not_ready)
        async with open_channel(address) as channel:
            stub = scaler_pb2_grpc.ScalerAdminStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.GetTopology(scaler_pb2.GetTopologyRequest(), timeout=WAIT_S)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            assert f"redis-cli DEL '{key}'" in (refused.value.details() or "")
        assert weight.seen[-1] == good  # the last good one

        async def is_logged() -> bool:
            return f"redis-cli DEL '{key}'" in (tmp_path / "scaler.log").read_text()

        await eventually(is_logged)
        await store._redis.delete(key)
        await eventually(lambda: is_serving(address))
        assert (await store.read()).nodes == good.nodes
    await weight.die()


async def has_adopted(weight: FakeWeightNode, epoch: int) -> bool:
    return bool(weight.seen) and weight.seen[-1].epoch == epoch
