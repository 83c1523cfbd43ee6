"""The routing-table store on Redis or Valkey."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from kernelflume.core.errors import ConfigurationError, ConflictError, EpochConflictError, UnavailableError
from kernelflume.core.routing import RoutingSnapshot
from kernelflume.store import scripts
from kernelflume.store.records import (
    Keys,
    damaged_table,
    dump_lease,
    dump_route,
    dump_snapshot,
    load_lease,
    load_routes,
    load_snapshot,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from kernelflume.core.leases import LeaseRecord, NodeKind
    from kernelflume.core.ranges import SequenceRoute

logger = logging.getLogger(__name__)

_MAX_CONNECTIONS = 16
_MIN_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 2.0
_ANY_OLDER_EPOCH = -1
_WRONG_TYPE = "WRONGTYPE"
"""How Redis begins its refusal of a command that is for another kind of value."""


class RedisStore:
    """``RoutingStore`` on one Redis; make and use it in one event loop.

    Every call ends within ``timeout_s`` or raises ``UnavailableError``. Connections are made at the first
    call and again after an outage; nothing needs to be told.
    """

    def __init__(self, url: str, *, cluster: str, timeout_s: float = 2.0) -> None:
        """Make a store that is not connected yet.

        Args:
            url: ``redis://[user:password@]host:port/db``, ``rediss://`` or ``unix://``.
            cluster: prefix of every key.
            timeout_s: bound of each call, of connecting too.

        Raises:
            ConfigurationError: the URL cannot be understood.
        """
        self._keys = Keys(cluster)
        self._url = redacted(url)
        self._timeout_s = timeout_s
        try:
            pool = BlockingConnectionPool.from_url(
                url,
                max_connections=_MAX_CONNECTIONS,
                timeout=timeout_s,
                # `_reaching` bounds each call. The client's own timeout is made with asyncio.wait_for, which
                # before Python 3.12 loses a cancellation that comes just as it ends.
                socket_timeout=None,
                socket_connect_timeout=timeout_s,
                socket_keepalive=True,
                decode_responses=True,
                protocol=2,
                # One more try at once: a pooled connection is stale after the server was restarted.
                retry=Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,)),
            )
        except (ValueError, RedisError) as error:
            raise ConfigurationError(f"redis-url: {self._url} cannot be used: {error}") from error
        self._redis: Redis = Redis.from_pool(pool)
        self._publish = self._redis.register_script(scripts.PUBLISH)
        self._write_setting = self._redis.register_script(scripts.WRITE_SETTING)
        self._renew = self._redis.register_script(scripts.RENEW)
        self._release = self._redis.register_script(scripts.RELEASE)
        self._living = self._redis.register_script(scripts.LIVING)
        self._lead = self._redis.register_script(scripts.LEAD)
        self._resign = self._redis.register_script(scripts.RESIGN)
        self._known_epoch = 0
        self._faults: dict[str, tuple[str, ...]] = {}
        self._notice = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def _reaching(self, purpose: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except (RedisError, OSError, TimeoutError) as error:
            fault = str(error) or f"no answer within {self._timeout_s:g} s"
            raise UnavailableError(f"routing-table store {self._url}: cannot {purpose}: {fault}") from error

    async def read(self) -> RoutingSnapshot:
        """Return the present snapshot; see ``MembershipStore.read``.

        Raises:
            LifecycleError: the table was written with another schema version.
            DamagedTableError: it cannot be read.
        """
        self._notice.clear()  # before asking: a notice that comes meanwhile is news
        key = self._keys.table
        async with self._reaching("read the routing table"):
            try:
                text: Any = await self._redis.hget(key, "snapshot")
            except ResponseError as error:
                if not str(error).startswith(_WRONG_TYPE):
                    raise
                raise damaged_table(key, f"the routing-table key {key} is no hash") from error
        snapshot = load_snapshot(text, key=key) if text else RoutingSnapshot()
        self._known_epoch = snapshot.epoch
        return snapshot

    async def publish(self, snapshot: RoutingSnapshot, *, fencing_token: int | None = None) -> None:
        """Compare-and-set on the epoch; see ``MembershipStore.publish``."""
        await self._write(snapshot, snapshot.epoch - 1, fencing_token)

    async def restore(self, snapshot: RoutingSnapshot, *, fencing_token: int | None = None) -> None:
        """Write back over any older epoch; see ``MembershipStore.restore``."""
        await self._write(snapshot, _ANY_OLDER_EPOCH, fencing_token)

    async def _write(self, snapshot: RoutingSnapshot, before: int, fencing_token: int | None) -> None:
        token = "" if fencing_token is None else str(fencing_token)
        async with self._reaching(f"publish epoch {snapshot.epoch}"):
            outcome, actual = await self._publish(
                keys=[self._keys.table, self._keys.fence],
                args=[
                    before,
                    snapshot.epoch,
                    dump_snapshot(snapshot),
                    secrets.token_hex(8),
                    token,
                    self._keys.notices,
                ],
            )
        if outcome == "fenced":
            raise ConflictError(
                f"fencing token {token} is no longer the leader's: epoch {snapshot.epoch} refused"
            )
        if outcome == "conflict":
            raise EpochConflictError(expected=snapshot.epoch - 1, actual=int(actual))

    async def wait_notice(self, *, timeout_s: float) -> bool:
        """Wait for a publish; see ``MembershipStore.wait_notice``. The first call subscribes."""
        if self._listener is None:
            self._listener = asyncio.create_task(self._listen(), name="routing-table notices")
        try:
            async with asyncio.timeout(timeout_s):
                await self._notice.wait()
        except TimeoutError:
            return False
        self._notice.clear()
        return True

    async def _listen(self) -> None:
        backoff_s = _MIN_BACKOFF_S
        while True:
            fault: Exception
            try:
                async with self._redis.pubsub() as channel:
                    async with self._reaching("subscribe to notices"):
                        await channel.subscribe(self._keys.notices)
                    while True:
                        message = await channel.get_message(timeout=self._timeout_s)
                        if message is not None:
                            await self._take_notice(message)
                            backoff_s = _MIN_BACKOFF_S
            except Exception as error:  # noqa: BLE001 - whatever it is, polling goes on and so must this
                fault = error
            if backoff_s == _MIN_BACKOFF_S:  # once an outage
                logger.warning("notices of the routing table are interrupted", exc_info=fault)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)

    async def _take_notice(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "message":
            epoch = int(message["data"])
        elif message["type"] == "subscribe":  # also after each reconnection: something may have been missed
            async with self._reaching("read the epoch"):
                text: Any = await self._redis.hget(self._keys.table, "epoch")
            epoch = int(text or 0)
        else:
            return
        if epoch != self._known_epoch:
            self._notice.set()

    async def renew(self, record: LeaseRecord, *, ttl_s: float) -> None:
        """Write the record for ``ttl_s`` seconds; see ``LeaseStore.renew``."""
        async with self._reaching(f"renew the lease of {record.name}"):
            await self._renew(
                keys=[self._keys.leases(record.kind), self._keys.expiries(record.kind)],
                args=[record.node_id, dump_lease(record), _milliseconds(ttl_s)],
            )

    async def release(self, kind: NodeKind, node_id: str, incarnation: str) -> None:
        """Give a lease up; see ``LeaseStore.release``."""
        async with self._reaching(f"release the lease of {node_id}"):
            await self._release(
                keys=[self._keys.leases(kind), self._keys.expiries(kind)], args=[node_id, incarnation]
            )

    async def living(self, kind: NodeKind) -> Sequence[LeaseRecord]:
        """Return all living nodes of a kind; see ``LeaseStore.living``."""
        async with self._reaching(f"list the living {kind}s"):
            texts = await self._living(keys=[self._keys.leases(kind), self._keys.expiries(kind)])
        records = []
        for text in texts:
            record, faults = load_lease(text)
            self._note_faults(record, faults)
            records.append(record)
        return sorted(records, key=lambda record: record.node_id)

    def _note_faults(self, record: LeaseRecord, faults: tuple[str, ...]) -> None:
        """Warn of figures that cannot be, when they change: leases are read several times a second."""
        if self._faults.get(record.node_id, ()) == faults:
            return
        if faults:
            logger.warning("%s reports figures that cannot be: %s", record.name, ", ".join(faults))
            self._faults[record.node_id] = faults
        else:
            del self._faults[record.node_id]

    async def put_routes(
        self, weight_node: str, routes: Mapping[int, SequenceRoute], *, ended: Sequence[int] = ()
    ) -> None:
        """Write and drop routes in one transaction; see ``SequenceRouteStore.put_routes``."""
        if not routes and not ended:
            return
        key = self._keys.routes(weight_node)
        async with self._reaching(f"write routes of {weight_node}"), self._redis.pipeline() as transaction:
            if routes:
                transaction.sadd(self._keys.route_index, weight_node)
                transaction.hset(
                    key, mapping={str(sequence): dump_route(route) for sequence, route in routes.items()}
                )
            if ended:
                transaction.hdel(key, *map(str, ended))
            await transaction.execute()

    async def drop_weight_node(self, weight_node: str) -> None:
        """Drop all routes of a weight node; see ``SequenceRouteStore.drop_weight_node``."""
        async with self._reaching(f"drop routes of {weight_node}"), self._redis.pipeline() as transaction:
            transaction.srem(self._keys.route_index, weight_node)
            transaction.delete(self._keys.routes(weight_node))
            await transaction.execute()

    async def routed_weight_nodes(self) -> frozenset[str]:
        """Return who reported routes; see ``SequenceRouteStore.routed_weight_nodes``."""
        async with self._reaching("read the routes"):
            names: Any = await self._redis.smembers(self._keys.route_index)
        return frozenset(names)

    async def routes(self) -> Mapping[str, Mapping[int, SequenceRoute]]:
        """Return all routes; see ``SequenceRouteStore.routes``."""
        async with self._reaching("read the routes"):
            names: Any = await self._redis.smembers(self._keys.route_index)
            ordered = sorted(names)
            async with self._redis.pipeline(transaction=False) as pipeline:
                for name in ordered:
                    pipeline.hgetall(self._keys.routes(name))
                hashes = await pipeline.execute()
        return {name: load_routes(fields) for name, fields in zip(ordered, hashes, strict=True) if fields}

    async def lead(self, candidate: str, *, ttl_s: float) -> int | None:
        """Take or keep the leadership; see ``LeaderStore.lead``."""
        async with self._reaching("take the leadership"):
            token = await self._lead(
                keys=[self._keys.leader, self._keys.fence], args=[candidate, _milliseconds(ttl_s)]
            )
        return None if token is None else int(token)

    async def resign(self, candidate: str) -> None:
        """Give the leadership up; see ``LeaderStore.resign``."""
        async with self._reaching("resign the leadership"):
            await self._resign(keys=[self._keys.leader], args=[candidate])

    async def read_setting(self, name: str) -> str | None:
        """Return the text that was set; see ``SettingStore.read_setting``."""
        async with self._reaching(f"read the setting {name}"):
            text: Any = await self._redis.get(self._keys.setting(name))
        return None if text is None else str(text)

    async def write_setting(
        self, name: str, text: str, *, fencing_token: int | None = None, ttl_s: float | None = None
    ) -> None:
        """Keep a text; see ``SettingStore.write_setting``."""
        ttl = "" if ttl_s is None else str(_milliseconds(ttl_s))
        token = "" if fencing_token is None else str(fencing_token)
        async with self._reaching(f"keep the setting {name}"):
            written = await self._write_setting(
                keys=[self._keys.setting(name), self._keys.fence], args=[text, token, ttl]
            )
        if not written:
            raise ConflictError(f"fencing token {token} is no longer the leader's: {name} is not kept")

    async def read_api_keys(self) -> Mapping[str, str]:
        """Return every key; see ``ApiKeyStore.read_api_keys``."""
        async with self._reaching("read the API keys"):
            texts: Any = await self._redis.hgetall(self._keys.api_keys)
        return dict(texts)

    async def put_api_key(self, key_id: str, text: str) -> None:
        """Keep a key; see ``ApiKeyStore.put_api_key``."""
        async with self._reaching("keep an API key"):
            await self._redis.hset(self._keys.api_keys, key_id, text)

    async def drop_api_key(self, key_id: str) -> bool:
        """Forget a key; see ``ApiKeyStore.drop_api_key``."""
        async with self._reaching("forget an API key"):
            return bool(await self._redis.hdel(self._keys.api_keys, key_id))

    async def close(self) -> None:
        """Stop listening and close every connection."""
        if self._listener is not None:
            self._listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listener
        with contextlib.suppress(RedisError, OSError):
            await self._redis.aclose()
            await self._redis.connection_pool.disconnect()


def redacted(url: str) -> str:
    """Return a store URL fit for a message: without its password."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    credentials, _, host = parts.netloc.rpartition("@")
    user, colon, _ = credentials.partition(":")
    return urlunsplit(parts._replace(netloc=f"{user}{colon}{'***' if colon else ''}@{host}"))


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))
