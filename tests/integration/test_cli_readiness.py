"""How `serve` knows that a weight node is ready whose address only its lease tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.scaler_rig import eventually
from tests.valkey import PATIENCE_S

from kernelflume.cli.parts import Probe, member_address
from kernelflume.cli.readiness import Readiness
from kernelflume.core.leases import LeaseRecord, NodeKind
from kernelflume.rpc.server import Server
from kernelflume.rpc.v1 import wnode_pb2, wnode_pb2_grpc
from kernelflume.runtime.service import free_port
from kernelflume.store.redis import RedisStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.redis

CLUSTER = "test"


class StubWeightNode(wnode_pb2_grpc.WeightNodeServicer):
    prepared: tuple[str, ...] = ()

    async def GetLoad(self, request: Any, context: Any) -> wnode_pb2.WeightNodeLoad:  # noqa: N802 - gRPC's name
        return wnode_pb2.WeightNodeLoad(prepared_nodes=self.prepared)


@pytest.fixture
async def readiness() -> AsyncIterator[Readiness]:
    probes = Readiness(cluster=CLUSTER, num_attention_nodes=2)
    yield probes
    await probes.close()


async def test_it_is_ready_once_it_joined_serves_and_is_connected(
    readiness: Readiness, valkey_url: str
) -> None:
    async def missing() -> str | None:
        return await readiness.missing(Probe.MEMBER, member_address("w-2", valkey_url))

    assert await missing() == "it has not told its address yet"
    stub = StubWeightNode()
    server = Server("127.0.0.1:0", [])
    wnode_pb2_grpc.add_WeightNodeServicer_to_server(stub, server.grpc_server)
    await server.start()
    store = RedisStore(valkey_url, cluster=CLUSTER, timeout_s=PATIENCE_S)
    try:
        for node_id in ("w-1", "w-2"):
            # Another one that does not answer is none of its concern.
            port = server.port if node_id == "w-2" else free_port()
            record = LeaseRecord(
                kind=NodeKind.WEIGHT, node_id=node_id, incarnation="0", address=f"127.0.0.1:{port}"
            )
            await store.renew(record, ttl_s=600)

        async def comes_to(expected: str | None) -> None:
            # Not at the first look: one that gets no answer in time says that.
            async def is_missing() -> bool:
                return await missing() == expected

            await eventually(is_missing)

        await comes_to(f"not serving yet at 127.0.0.1:{server.port}")
        await server.set_serving(serving=True)
        stub.prepared = ("a-1#x",)
        await comes_to("connected to 1 of 2 attention nodes")
        stub.prepared = ("a-1#x", "a-2#y")
        await comes_to(None)
    finally:
        await store.close()
        await server.stop(0)


async def test_a_store_that_is_not_there_is_what_is_missing(readiness: Readiness) -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"
    assert "cannot list the living wnodes" in (
        await readiness.missing(Probe.MEMBER, member_address("w-1", url)) or ""
    )
