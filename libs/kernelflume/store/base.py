"""The routing-table store: small seams that one Redis (or in-memory) store implements.

All methods are coroutines of the caller's event loop; none is called from a step loop. Each raises
``UnavailableError`` when the store cannot be reached within its timeout: the data plane then goes on with
the snapshot it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kernelflume.core.leases import LeaseRecord, NodeKind
    from kernelflume.core.ranges import SequenceRoute
    from kernelflume.core.routing import RoutingSnapshot


class MembershipStore(Protocol):
    """The routing snapshot. The scaler publishes, weight nodes read, anyone may watch."""

    async def read(self) -> RoutingSnapshot:
        """Return the present snapshot; epoch 0 without nodes when nothing was ever published.

        Raises:
            DamagedTableError: what is there cannot be read, until a person deletes it.
        """
        ...

    async def publish(self, snapshot: RoutingSnapshot, *, fencing_token: int | None = None) -> None:
        """Make ``snapshot`` the present one and send a notice, if the store is at ``snapshot.epoch - 1``.

        The comparison and the write are one atomic step and the only commit point of a scale event. With a
        ``fencing_token`` (from ``LeaderStore.lead``) the publish also fails once a newer leader exists.

        Raises:
            EpochConflictError: another epoch is the present one; nothing was written.
            ConflictError: the fencing token is an old leader's; nothing was written.
        """
        ...

    async def restore(self, snapshot: RoutingSnapshot, *, fencing_token: int | None = None) -> None:
        """Write ``snapshot`` back, and send a notice, if the store is at any older epoch.

        For the leader alone, after the store has lost its data: weight nodes never go back to an older
        epoch, so the table must come back at the newest one that anybody saw.

        Raises:
            EpochConflictError: the store is at this epoch or a newer one; nothing was written.
            ConflictError: the fencing token is an old leader's; nothing was written.
        """
        ...

    async def wait_notice(self, *, timeout_s: float) -> bool:
        """Wait for a publish by anyone; True if a notice came, False at the timeout.

        True also when the store turns out to hold another epoch than this handle's last ``read`` gave (the
        subscription was only just made, or made again). A notice may be lost: call ``read`` after every
        return, so that the timeout is the poll interval. An unreachable store is no error here: the wait
        lasts its time, and the ``read`` that follows tells.
        """
        ...


class LeaseStore(Protocol):
    """Who is alive. Each node renews its own lease."""

    async def renew(self, record: LeaseRecord, *, ttl_s: float) -> None:
        """Write the record, to vanish ``ttl_s`` seconds from now unless renewed."""
        ...

    async def release(self, kind: NodeKind, node_id: str, incarnation: str) -> None:
        """Give the lease up at once, if this incarnation still holds it."""
        ...

    async def living(self, kind: NodeKind) -> Sequence[LeaseRecord]:
        """Return the records of all nodes of a kind whose lease has not run out, sorted by node id."""
        ...


class SequenceRouteStore(Protocol):
    """Where each sequence's keys and values are, as its weight node last reported."""

    async def put_routes(
        self, weight_node: str, routes: Mapping[int, SequenceRoute], *, ended: Sequence[int] = ()
    ) -> None:
        """Write or replace routes of ``weight_node`` (its name) by sequence id; drop the ``ended`` ones."""
        ...

    async def drop_weight_node(self, weight_node: str) -> None:
        """Drop every route of a weight node that is gone."""
        ...

    async def routed_weight_nodes(self) -> frozenset[str]:
        """Return the names of the weight nodes that reported routes and were not dropped."""
        ...

    async def routes(self) -> Mapping[str, Mapping[int, SequenceRoute]]:
        """Return all routes: weight node name -> sequence id -> route."""
        ...


class LeaderStore(Protocol):
    """One leader among the scalers, by lease with a fencing token that only grows."""

    async def lead(self, candidate: str, *, ttl_s: float) -> int | None:
        """Take or keep the leadership; return the fencing token, or None while another one leads.

        ``candidate`` must differ at every start of a process, so that a successor is never its own past.
        """
        ...

    async def resign(self, candidate: str) -> None:
        """Give the leadership up, if ``candidate`` has it."""
        ...


class SettingStore(Protocol):
    """What was set while a service ran and is to outlive it, as texts that the service understands."""

    async def read_setting(self, name: str) -> str | None:
        """Return the text, or None when none was set."""
        ...

    async def write_setting(
        self, name: str, text: str, *, fencing_token: int | None = None, ttl_s: float | None = None
    ) -> None:
        """Keep a text in place of the one before, for ``ttl_s`` seconds or for good.

        Raises:
            ConflictError: ``fencing_token`` is no longer the leader's; nothing was written.
        """
        ...


class ApiKeyStore(Protocol):
    """API keys of the gateway, each a text by its id; what is in it is ``core.apikeys``'s."""

    async def read_api_keys(self) -> Mapping[str, str]:
        """Return every key."""
        ...

    async def put_api_key(self, key_id: str, text: str) -> None:
        """Keep a key, in place of one with the same id."""
        ...

    async def drop_api_key(self, key_id: str) -> bool:
        """Forget a key; False when there was none."""
        ...


class RoutingStore(
    MembershipStore, LeaseStore, SequenceRouteStore, LeaderStore, SettingStore, ApiKeyStore, Protocol
):
    """All six seams on one connection."""

    async def close(self) -> None:
        """Close the connection; no other call may follow."""
        ...
