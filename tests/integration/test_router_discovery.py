"""The router finds weight nodes through their leases in a real store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest
from tests.router_parts import eventually, router, saying, weight_node, write_model
from tests.valkey import PATIENCE_S

from kernelflume.core.leases import LeaseRecord, NodeKind
from kernelflume.store.redis import RedisStore

if TYPE_CHECKING:
    from pathlib import Path

    from tests.valkey import ValkeyProcess

pytestmark = pytest.mark.redis
LETTER = 5
BODY = {"prompt": "a"}


async def status_of(client: httpx.AsyncClient) -> int:
    return (await client.post("/v1/completions", json=BODY)).status_code


async def test_nodes_come_and_go_with_their_leases_and_outlive_the_store(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    folder = write_model(tmp_path)
    store = RedisStore(valkey.url, cluster="here", timeout_s=PATIENCE_S)
    async with (
        weight_node(folder, saying(LETTER)) as node,
        router(folder, [], redis_url=valkey.url, cluster="here") as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        record = LeaseRecord(kind=NodeKind.WEIGHT, node_id="w0", incarnation="1", address=node.address)

        async def serves() -> bool:
            return await status_of(client) == 200

        async def refuses() -> bool:
            return await status_of(client) == 503

        await eventually(refuses)
        await store.renew(record, ttl_s=600)
        await eventually(serves)
        await store.release(NodeKind.WEIGHT, "w0", "1")
        await eventually(refuses)
        await store.renew(record, ttl_s=600)
        await eventually(serves)
        await store.close()
        valkey.kill()
        # The store is gone, the node is not.
        for _ in range(5):
            assert await status_of(client) == 200
