"""How the routing table is written down: key names and the JSON of each record."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelflume.core.errors import DamagedTableError, KernelFlumeError, UnavailableError
from kernelflume.core.leases import LeaseRecord, NodeKind
from kernelflume.core.ranges import OwnedRange, SequenceRoute, TokenRange
from kernelflume.core.routing import RoutingSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

KEY_SCHEMA = 1
"""Version of the keys below; part of each key. History: 1 = table, leases, routes, leader."""
_SHOWN_CHARS = 200
"""Of a damaged record in a message."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of all keys of one cluster.

    The cluster stands in braces, so that Redis Cluster keeps all of them in one slot and a script may touch
    several.
    """

    cluster: str

    def _key(self, *parts: str) -> str:
        return ":".join((f"{{{self.cluster}}}", f"v{KEY_SCHEMA}", *parts))

    @property
    def table(self) -> str:
        """Hash of epoch, snapshot (JSON) and the id of the publish that wrote them."""
        return self._key("table")

    def setting(self, name: str) -> str:
        """Text of a setting that outlives the service."""
        return self._key("settings", name)

    @property
    def api_keys(self) -> str:
        """Hash of key id -> API key (JSON)."""
        return self._key("api-keys")

    @property
    def notices(self) -> str:
        """Channel that carries the new epoch at each publish."""
        return self._key("notices")

    def leases(self, kind: NodeKind) -> str:
        """Hash of node id -> lease record (JSON)."""
        return self._key("leases", str(kind))

    def expiries(self, kind: NodeKind) -> str:
        """Sorted set of node ids by the end of their lease, in ms of the server's clock."""
        return self._key("expiries", str(kind))

    @property
    def route_index(self) -> str:
        """Set of the weight node names that have routes."""
        return self._key("routes")

    def routes(self, weight_node: str) -> str:
        """Hash of sequence id -> route (JSON) of one weight node."""
        return self._key("routes", weight_node)

    @property
    def leader(self) -> str:
        """The leading candidate; expires with its lease."""
        return self._key("leader")

    @property
    def fence(self) -> str:
        """The newest fencing token given out."""
        return self._key("fence")


def dump_snapshot(snapshot: RoutingSnapshot) -> str:
    """Encode a snapshot."""
    return _dump(snapshot.to_dict())


def load_snapshot(text: str, *, key: str) -> RoutingSnapshot:
    """Decode the snapshot that stands under ``key``.

    Raises:
        LifecycleError: it was written with another schema version.
        DamagedTableError: it is damaged; the message says how to mend it.
    """
    try:
        with _reading("routing table", text):
            return RoutingSnapshot.from_dict(json.loads(text))
    except UnavailableError as error:
        raise damaged_table(key, str(error)) from error


def damaged_table(key: str, fault: str) -> DamagedTableError:
    """Return the error for a routing table that cannot be read: the key, and what to do about it."""
    return DamagedTableError(
        f"{fault}: nodes go on with the last good table, and nothing is scaled. Delete the key "
        f"(redis-cli DEL '{key}'), and the leading scaler writes the table back"
    )


def dump_lease(record: LeaseRecord) -> str:
    """Encode a lease record."""
    return _dump(record.to_dict())


def load_lease(text: str) -> tuple[LeaseRecord, tuple[str, ...]]:
    """Decode a lease record; also return the figures of its load that cannot be, and are left out.

    Raises:
        UnavailableError: it is damaged.
    """
    with _reading("lease", text):
        return LeaseRecord.from_dict(json.loads(text))


def dump_route(route: SequenceRoute) -> str:
    """Encode a route as a list of [node id, start, end]."""
    return _dump([[owned.node_id, owned.tokens.start, owned.tokens.end] for owned in route.ranges])


def load_route(text: str) -> SequenceRoute:
    """Decode a route.

    Raises:
        LifecycleError: the ranges do not cover [0, n) in order.
        UnavailableError: it is damaged.
    """
    with _reading("route", text):
        return SequenceRoute(
            tuple(OwnedRange(node_id, TokenRange(start, end)) for node_id, start, end in json.loads(text))
        )


def load_routes(texts: Mapping[str, str]) -> dict[int, SequenceRoute]:
    """Decode the routes of one weight node, by sequence id.

    Raises:
        LifecycleError: see ``load_route``.
        UnavailableError: one is damaged.
    """
    routes = {}
    for sequence, text in texts.items():
        with _reading("sequence id", sequence):
            routes[int(sequence)] = load_route(text)
    return routes


@contextmanager
def _reading(what: str, text: str) -> Iterator[None]:
    """Make a record that cannot be read an outage of the store: who reads goes on with what it knows.

    A lease and a route are mended by their owner's next write.
    """
    try:
        yield
    except KernelFlumeError:
        raise
    except Exception as error:
        shown = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
        raise UnavailableError(
            f"the routing-table store holds a damaged {what}: {type(error).__name__}: {error}, in {shown}"
        ) from error


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
