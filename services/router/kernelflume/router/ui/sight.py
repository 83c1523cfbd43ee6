"""What is known of the cluster at one time, and how it is read: from the store, weight nodes, the scaler."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import grpc

from kernelflume.core.errors import KernelFlumeError
from kernelflume.core.leases import NodeKind
from kernelflume.core.names import split_name
from kernelflume.core.roles import WeightNodeRole
from kernelflume.rpc.channel import PLAINTEXT
from kernelflume.rpc.status import error_of
from kernelflume.rpc.v1 import scaler_pb2, scaler_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    from kernelflume.core.leases import LeaseRecord
    from kernelflume.core.ranges import SequenceRoute
    from kernelflume.core.routing import RoutingSnapshot
    from kernelflume.router.weightnodes import WeightNodes
    from kernelflume.rpc.channel import Channels
    from kernelflume.store.base import LeaseStore, MembershipStore

    class Store(MembershipStore, LeaseStore, Protocol):
        """The seams of the routing-table store that are read."""


_CALL_TIMEOUT_S = 1.0
LAUNCHING = "launching"
"""State of a node that an operation starts and that is not in the table yet."""
_STARTING_PHASES = ("launching", "prewarming")


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSight:
    """One running sequence."""

    weight_node: str
    """host:port of the weight node that runs it."""
    sequence_id: int
    route: SequenceRoute


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightNodeSight:
    """One weight node as the router uses it."""

    address: str
    role: WeightNodeRole = WeightNodeRole.BOTH
    trouble: str | None
    """Why it cannot serve; None when it can."""
    num_requests: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """All that is known at one time."""

    table: RoutingSnapshot | None = None
    """None before the store could ever be read."""
    attention_leases: tuple[LeaseRecord, ...] = ()
    weight_leases: tuple[LeaseRecord, ...] = ()
    weight_nodes: tuple[WeightNodeSight, ...] = ()
    sequences: tuple[SequenceSight, ...] = ()
    """Those with keys and values somewhere."""
    topology: scaler_pb2.Topology | None = None
    """What the scaler says of its operation and decisions; None where it cannot be asked."""
    store_fault: str = ""
    """Why table and leases are not of now; '' when they are."""
    scaler_fault: str = ""
    """Why ``topology`` is None; '' when it is not."""


def launching_nodes(sight: Sight) -> tuple[str, ...]:
    """Return the ids of the nodes that an operation starts and that are not in the table yet."""
    topology = sight.topology
    if topology is None or topology.operation.phase not in _STARTING_PHASES:
        return ()
    known = {node.node_id for node in sight.table.nodes} if sight.table is not None else set()
    ids = (split_name(name)[0] for name in topology.operation.node_ids)
    return tuple(node_id for node_id in ids if node_id not in known)


class SightReader:
    """Looks at the cluster. Each look ends within a few seconds, whatever is away."""

    def __init__(self, *, store: Store, nodes: WeightNodes, channels: Channels = PLAINTEXT) -> None:
        """Know whom to ask.

        Args:
            store: the routing-table store.
            nodes: the weight nodes that the router uses.
            channels: how the scaler is called.
        """
        self._store = store
        self._nodes = nodes
        self._scaler = _Scaler(channels)

    async def read(self, before: Sight, *, with_scaler: bool) -> Sight:
        """Return what is known now.

        Args:
            before: what was known before; of parts that are away the last known state stays.
            with_scaler: ask the scaler as well.
        """
        weights = tuple(
            WeightNodeSight(
                address=view.address,
                role=view.role,
                trouble=self._nodes.node(view.address).trouble,
                num_requests=view.num_requests,
                num_tokens=view.num_tokens,
            )
            for view in self._nodes.views()
        )
        stored, sequences = await asyncio.gather(self._read_store(before, with_scaler), self._sequences())
        return replace(stored, weight_nodes=weights, sequences=sequences)

    async def close(self) -> None:
        """Close the channel to the scaler."""
        await self._scaler.close()

    async def _read_store(self, before: Sight, with_scaler: bool) -> Sight:
        try:
            table = await self._store.read()
            attention = await self._store.living(NodeKind.ATTENTION)
            weights = await self._store.living(NodeKind.WEIGHT)
            scalers = await self._store.living(NodeKind.SCALER) if with_scaler else ()
        except KernelFlumeError as error:
            return replace(
                before,
                store_fault=str(error),
                topology=None,
                scaler_fault="the store does not say where it is",
            )
        sight = replace(
            before,
            table=table,
            attention_leases=tuple(attention),
            weight_leases=tuple(weights),
            store_fault="",
        )
        if not with_scaler:
            return sight
        topology, fault = await self._scaler.topology([record.address for record in scalers])
        return replace(sight, topology=topology, scaler_fault=fault)

    async def _sequences(self) -> tuple[SequenceSight, ...]:
        addresses = [view.address for view in self._nodes.views() if view.serving]
        found = await asyncio.gather(
            *(self._nodes.node(address).routes(timeout_s=_CALL_TIMEOUT_S) for address in addresses)
        )
        return tuple(
            SequenceSight(weight_node=address, sequence_id=sequence_id, route=route)
            for address, routes in zip(addresses, found, strict=True)
            for sequence_id, route in sorted(routes.items())
            if route.ranges
        )


class _Scaler:
    """The scaler that answered last, and the channel to it."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._address = ""
        self._channel: grpc.aio.Channel | None = None

    async def topology(self, addresses: Sequence[str]) -> tuple[scaler_pb2.Topology | None, str]:
        """Return what the leading scaler says, or None and why."""
        if not addresses:
            return None, "no scaler holds a lease"
        fault = ""
        # The one that answered last comes first: those that wait for its place know of no operation.
        for address in sorted(addresses, key=lambda address: address != self._address):
            stub = scaler_pb2_grpc.ScalerAdminStub(await self._open(address))
            try:
                topology: scaler_pb2.Topology = await stub.GetTopology(
                    scaler_pb2.GetTopologyRequest(), timeout=_CALL_TIMEOUT_S
                )
            except grpc.aio.AioRpcError as failure:
                fault = f"the scaler at {address} does not answer: {error_of(failure)}"
            else:
                return topology, ""
        return None, fault

    async def _open(self, address: str) -> grpc.aio.Channel:
        if self._channel is None or self._address != address:
            await self.close()
            self._address, self._channel = address, self._channels.open(address)
        return self._channel

    async def close(self) -> None:
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close()
