"""A router with its live page on a real store, a scripted weight node, and attention nodes in the table."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from kernelflume.core.leases import LeaseRecord, NodeKind
from kernelflume.core.routing import NodeState, RoutingSnapshot
from kernelflume.router.ui import sight
from kernelflume.rpc.v1 import common_pb2, wnode_pb2
from kernelflume.store.redis import RedisStore
from tests.router_parts import eventually, router, saying, weight_node, write_model
from tests.ui_sights import attention_lease, entry
from tests.valkey import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.router_parts import ScriptedWeightNode
    from tests.valkey import ValkeyProcess

LETTER = 5
_TTL_S = 600


@dataclass
class UiCluster:
    """Where it is, and what can be changed in it."""

    url: str
    store: RedisStore
    node: ScriptedWeightNode

    async def publish(self, epoch: int, **states: NodeState) -> None:
        """Make a table of attention nodes ``a_1``, ``a_2`` ... and give each its lease."""
        entries = tuple(entry(name.replace("_", "-"), state) for name, state in states.items())
        for node in entries:
            await self.store.renew(attention_lease(node.node_id, used=250), ttl_s=_TTL_S)
        await self.store.publish(RoutingSnapshot(epoch, entries))

    def run_sequence(self, sequence_id: int, *pieces: tuple[str, int, int]) -> None:
        """Let the weight node list one more sequence with ranges of (node, start, end)."""
        ranges = [
            common_pb2.OwnedRange(node_id=node_id, start=start, end=end) for node_id, start, end in pieces
        ]
        self.node.sequences = [
            *self.node.sequences,
            wnode_pb2.SequenceStatus(sequence_id=sequence_id, state="running", ranges=ranges),
        ]


@asynccontextmanager
async def _open_store(url: str) -> AsyncIterator[RedisStore]:
    store = RedisStore(url, cluster="here", timeout_s=PATIENCE_S)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def ui_cluster(
    folder: Path, valkey: ValkeyProcess, script: Any = None, **settings: Any
) -> AsyncIterator[UiCluster]:
    """Run a router that is ready, with a-1 active, a-2 draining, and one sequence on both."""
    model = write_model(folder)
    with pytest.MonkeyPatch.context() as patch:
        # Whoever is asked on a busy machine answers late, and is not away.
        patch.setattr(sight, "_CALL_TIMEOUT_S", 30.0)
        async with _ui_cluster(model, valkey, script, settings) as cluster:
            yield cluster


@asynccontextmanager
async def _ui_cluster(
    model: Path, valkey: ValkeyProcess, script: Any, settings: dict[str, Any]
) -> AsyncIterator[UiCluster]:
    async with (
        _open_store(valkey.url) as store,
        weight_node(model, script or saying(LETTER)) as node,
    ):
        record = LeaseRecord(kind=NodeKind.WEIGHT, node_id="w-1", incarnation="1", address=node.address)
        await store.renew(record, ttl_s=_TTL_S)
        async with router(model, [], redis_url=valkey.url, cluster="here", **settings) as url:
            cluster = UiCluster(url, store, node)
            await cluster.publish(1, a_1=NodeState.ACTIVE, a_2=NodeState.DRAINING)
            cluster.run_sequence(41, ("a-1", 0, 100), ("a-2", 100, 150))

            async def is_ready() -> bool:
                async with httpx.AsyncClient(base_url=url) as client:
                    return (await client.get("/ready")).status_code == 200

            await eventually(is_ready)
            yield cluster
