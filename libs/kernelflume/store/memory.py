"""The in-memory twin of ``kernelflume.store.redis``, for unit tests: same contract, no socket."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from kernelflume.core.errors import ConflictError, EpochConflictError, UnavailableError
from kernelflume.core.routing import RoutingSnapshot
from kernelflume.runtime.clock import MonotonicClock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kernelflume.core.leases import LeaseRecord, NodeKind
    from kernelflume.core.ranges import SequenceRoute
    from kernelflume.runtime.clock import Clock


class MemoryServer:
    """What all handles of one in-memory store share; its only writers are ``MemoryStore`` handles.

    Set ``reachable`` to False for an outage, and call ``lose_data`` for a restart without persistence.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or MonotonicClock()
        self.reachable = True
        self.handles: list[MemoryStore] = []
        self.fence = 0
        self.lose_data()

    def lose_data(self) -> None:
        """Forget everything but the fencing token, which never goes back."""
        self.snapshot = RoutingSnapshot()
        self.leases: dict[tuple[NodeKind, str], tuple[LeaseRecord, float]] = {}
        self.routes: dict[str, dict[int, SequenceRoute]] = {}
        self.leader: tuple[str, float] | None = None
        self.settings: dict[str, tuple[str, float]] = {}
        """Name -> text and when it vanishes."""
        self.api_keys: dict[str, str] = {}


class MemoryStore:
    """``RoutingStore`` in memory; handles on one ``MemoryServer`` see each other's writes."""

    def __init__(self, server: MemoryServer | None = None) -> None:
        self._server = server or MemoryServer()
        self._known_epoch = 0
        self._notice = asyncio.Event()
        self._server.handles.append(self)

    def _reach(self) -> MemoryServer:
        if not self._server.reachable:
            raise UnavailableError("routing-table store memory: cannot be reached")
        return self._server

    async def read(self) -> RoutingSnapshot:
        """Return the present snapshot; see ``MembershipStore.read``."""
        snapshot = self._reach().snapshot
        self._notice.clear()
        self._known_epoch = snapshot.epoch
        return snapshot

    async def publish(self, snapshot: RoutingSnapshot, *, fencing_token: int | None = None) -> None:
        """Compare-and-set on the epoch; see ``MembershipStore.publish``."""
        self._write(snapshot, range(snapshot.epoch - 1, snapshot.epoch), fencing_token)

    async def restore(self, snapshot: RoutingSnapshot, *, fencing_token: int | None = None) -> None:
        """Write back over any older epoch; see ``MembershipStore.restore``."""
        self._write(snapshot, range(snapshot.epoch), fencing_token)

    def _write(self, snapshot: RoutingSnapshot, allowed: range, fencing_token: int | None) -> None:
        server = self._reach()
        if fencing_token is not None and fencing_token != server.fence:
            raise ConflictError(
                f"fencing token {fencing_token} is no longer the leader's: epoch {snapshot.epoch} refused"
            )
        if server.snapshot.epoch not in allowed:
            raise EpochConflictError(expected=snapshot.epoch - 1, actual=server.snapshot.epoch)
        server.snapshot = snapshot
        for handle in server.handles:
            handle.take_notice(snapshot.epoch)

    def take_notice(self, epoch: int) -> None:
        """Hear of a publish by any handle."""
        if epoch != self._known_epoch:
            self._notice.set()

    async def wait_notice(self, *, timeout_s: float) -> bool:
        """Wait for a publish; see ``MembershipStore.wait_notice``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._notice.wait()
        except TimeoutError:
            return False
        self._notice.clear()
        return True

    async def renew(self, record: LeaseRecord, *, ttl_s: float) -> None:
        """Write the record for ``ttl_s`` seconds; see ``LeaseStore.renew``."""
        server = self._reach()
        server.leases[record.kind, record.node_id] = (record, server.clock.now() + ttl_s)

    async def release(self, kind: NodeKind, node_id: str, incarnation: str) -> None:
        """Give a lease up; see ``LeaseStore.release``."""
        server = self._reach()
        held = server.leases.get((kind, node_id))
        if held is not None and held[0].incarnation == incarnation:
            del server.leases[kind, node_id]

    async def living(self, kind: NodeKind) -> Sequence[LeaseRecord]:
        """Return all living nodes of a kind; see ``LeaseStore.living``."""
        server = self._reach()
        now = server.clock.now()
        server.leases = {key: held for key, held in server.leases.items() if held[1] > now}
        records = (record for record, _ in server.leases.values() if record.kind is kind)
        return sorted(records, key=lambda record: record.node_id)

    async def put_routes(
        self, weight_node: str, routes: Mapping[int, SequenceRoute], *, ended: Sequence[int] = ()
    ) -> None:
        """Write and drop routes; see ``SequenceRouteStore.put_routes``."""
        held = self._reach().routes
        if routes:
            held.setdefault(weight_node, {}).update(routes)
        for sequence in ended:
            held.get(weight_node, {}).pop(sequence, None)

    async def drop_weight_node(self, weight_node: str) -> None:
        """Drop all routes of a weight node; see ``SequenceRouteStore.drop_weight_node``."""
        self._reach().routes.pop(weight_node, None)

    async def routed_weight_nodes(self) -> frozenset[str]:
        """Return who reported routes; see ``SequenceRouteStore.routed_weight_nodes``."""
        return frozenset(self._reach().routes)

    async def routes(self) -> Mapping[str, Mapping[int, SequenceRoute]]:
        """Return all routes; see ``SequenceRouteStore.routes``."""
        held = self._reach().routes
        return {name: dict(routes) for name, routes in sorted(held.items()) if routes}

    async def lead(self, candidate: str, *, ttl_s: float) -> int | None:
        """Take or keep the leadership; see ``LeaderStore.lead``."""
        server = self._reach()
        now = server.clock.now()
        holder = server.leader[0] if server.leader is not None and server.leader[1] > now else None
        if holder not in (None, candidate):
            return None
        if holder is None:
            server.fence += 1
        server.leader = (candidate, now + ttl_s)
        return server.fence

    async def resign(self, candidate: str) -> None:
        """Give the leadership up; see ``LeaderStore.resign``."""
        server = self._reach()
        if server.leader is not None and server.leader[0] == candidate:
            server.leader = None

    async def read_setting(self, name: str) -> str | None:
        """Return the text that was set; see ``SettingStore.read_setting``."""
        server = self._reach()
        text, ends_at = server.settings.get(name, (None, 0.0))
        return text if server.clock.now() < ends_at else None

    async def write_setting(
        self, name: str, text: str, *, fencing_token: int | None = None, ttl_s: float | None = None
    ) -> None:
        """Keep a text; see ``SettingStore.write_setting``."""
        server = self._reach()
        if fencing_token is not None and fencing_token != server.fence:
            raise ConflictError(
                f"fencing token {fencing_token} is no longer the leader's: {name} is not kept"
            )
        server.settings[name] = (text, math.inf if ttl_s is None else server.clock.now() + ttl_s)

    async def read_api_keys(self) -> Mapping[str, str]:
        """Return every key; see ``ApiKeyStore.read_api_keys``."""
        return dict(self._reach().api_keys)

    async def put_api_key(self, key_id: str, text: str) -> None:
        """Keep a key; see ``ApiKeyStore.put_api_key``."""
        self._reach().api_keys[key_id] = text

    async def drop_api_key(self, key_id: str) -> bool:
        """Forget a key; see ``ApiKeyStore.drop_api_key``."""
        return self._reach().api_keys.pop(key_id, None) is not None

    async def close(self) -> None:
        """Hear of no more publishes."""
        if self in self._server.handles:
            self._server.handles.remove(self)
