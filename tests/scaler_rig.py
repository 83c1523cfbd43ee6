"""A scaler's controller over a real store, with attention and weight nodes that are real gRPC servers."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc

from kernelflume.core.leases import LeaseRecord, NodeKind, NodeLoad
from kernelflume.core.ranges import SequenceRoute
from kernelflume.rpc.channel import Channels
from kernelflume.rpc.server import Server
from kernelflume.rpc.v1 import wnode_pb2, wnode_pb2_grpc
from kernelflume.runtime.clock import MonotonicClock
from kernelflume.runtime.service import new_incarnation
from kernelflume.runtime.tracing import NO_TRACER
from kernelflume.scaler.actors import Actors
from kernelflume.scaler.book import OperationBook
from kernelflume.scaler.controller import Controller, ControllerSettings
from kernelflume.scaler.decision_log import DecisionLog
from kernelflume.scaler.leader import Leadership
from kernelflume.scaler.metrics import ScalerMetrics
from kernelflume.scaler.policy import PolicySettings
from kernelflume.scaler.scaling_policy import ScalingPolicy
from kernelflume.scaler.table import Table
from kernelflume.scaler.weights import WeightNodes
from kernelflume.store.redis import RedisStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence

    from kernelflume.core.profile import PerformanceProfile
    from kernelflume.core.routing import NodeState, RoutingSnapshot
    from kernelflume.runtime.tracing import Tracer
    from kernelflume.scaler.operation import Operation, Phase
    from kernelflume.scaler.providers.base import Provider
    from kernelflume.store.base import RoutingStore

CLUSTER = "test"
WAIT_S = 60.0
"""Bound of every wait; a good run needs a fraction of a second."""
LEASE_TTL_S = 60.0
"""So long that a busy machine loses no lease; a node that dies in a test gives its lease up."""
_BEAT_S = 0.03


async def eventually(condition: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await condition():  # noqa: ASYNC110 - the condition is another process's
            await asyncio.sleep(0.02)


class _Node:
    """A gRPC server with a lease that is renewed until it dies."""

    def __init__(self, kind: NodeKind, node_id: str, store: RoutingStore) -> None:
        self.kind = kind
        self.node_id = node_id
        self.incarnation = new_incarnation()
        self.load = NodeLoad()
        self.store = store
        self.server = Server("127.0.0.1:0", [])
        self.address = ""
        self._beating: asyncio.Task[None] | None = None
        self._one_beat = asyncio.Lock()

    @property
    def name(self) -> str:
        return f"{self.node_id}#{self.incarnation}"

    async def start(self, *, serving: bool = True) -> None:
        await self.server.start()
        await self.server.set_serving(serving=serving)
        self.address = f"127.0.0.1:{self.server.port}"
        await self.beat()
        self._beating = asyncio.create_task(self._beat_on())

    async def beat(self) -> None:
        async with self._one_beat:  # one after another: an older load must not come last
            record = LeaseRecord(
                kind=self.kind,
                node_id=self.node_id,
                incarnation=self.incarnation,
                address=self.address,
                load=self.load,
            )
            await self.store.renew(record, ttl_s=LEASE_TTL_S)

    async def _beat_on(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_S)
            with contextlib.suppress(Exception):
                await self.beat()

    async def die(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
            self._beating = None
            await self.server.stop(0)
            with contextlib.suppress(Exception):
                await self.store.release(self.kind, self.node_id, self.incarnation)


class FakeAttentionNode(_Node):
    def __init__(self, node_id: str, store: RoutingStore) -> None:
        super().__init__(NodeKind.ATTENTION, node_id, store)
        self.load = NodeLoad(capacity_tokens=1000)


class FakeWeightNode(_Node):
    """Adopts every snapshot at its next beat, and answers as it is told to."""

    def __init__(self, node_id: str, store: RoutingStore) -> None:
        super().__init__(NodeKind.WEIGHT, node_id, store)
        self.adopts = True
        self.extra: dict[str, Any] = {}
        """Further figures of its load."""
        self.hangs = False
        self.prepare_failure: tuple[grpc.StatusCode, str] | None = None
        self.release_refusal: str | None = None
        self.prepared: list[str] = []
        self.released: list[str] = []
        self.seen: list[RoutingSnapshot] = []
        wnode_pb2_grpc.add_WeightNodeServicer_to_server(_WeightServicer(self), self.server.grpc_server)

    async def beat(self) -> None:
        if self.adopts:
            snapshot = await self.store.read()
            if not self.seen or snapshot.epoch > self.seen[-1].epoch:
                self.seen.append(snapshot)
            self.load = NodeLoad(adopted_epoch=self.seen[-1].epoch, **self.extra)
        await super().beat()


class _WeightServicer(wnode_pb2_grpc.WeightNodeServicer):
    def __init__(self, node: FakeWeightNode) -> None:
        self._node = node

    async def PrepareEndpoint(  # noqa: N802
        self, request: wnode_pb2.PrepareEndpointRequest, context: Any
    ) -> wnode_pb2.PrepareEndpointResponse:
        if self._node.hangs:
            await asyncio.sleep(WAIT_S)
        if self._node.prepare_failure is not None:
            await context.abort(*self._node.prepare_failure)
        self._node.prepared.append(request.node_id)
        return wnode_pb2.PrepareEndpointResponse(connect_seconds=0.2, warm_seconds=0.002)

    async def ReleaseEndpoint(  # noqa: N802
        self, request: wnode_pb2.ReleaseEndpointRequest, context: Any
    ) -> wnode_pb2.ReleaseEndpointResponse:
        if self._node.release_refusal is not None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self._node.release_refusal)
        self._node.released.append(request.node_id)
        return wnode_pb2.ReleaseEndpointResponse()


class FakeProvider:
    """Starts attention nodes inside the test."""

    adopts = False
    reuses_ids = False

    def victim_order(self, node_ids: Sequence[str]) -> None:
        return None

    def __init__(self, store: RoutingStore) -> None:
        self._store = store
        self._number = 0
        self.nodes: dict[str, FakeAttentionNode] = {}
        self.failures: dict[str, str] = {}
        self.ends_at_once: str | None = None
        self.takes_lease = True
        self.serves = True
        self.terminated: list[str] = []

    async def launch(self, taken: Collection[str]) -> str:
        self._number += 1
        node_id = f"a-{self._number}"
        assert node_id not in taken
        if self.ends_at_once is not None:
            self.failures[node_id] = self.ends_at_once
            return node_id
        node = FakeAttentionNode(node_id, self._store)
        self.nodes[node_id] = node
        if self.takes_lease:
            await node.start(serving=self.serves)
        return node_id

    async def kill(self, node_id: str, reason: str = "was ended by SIGKILL") -> None:
        await self.nodes.pop(node_id).die()
        self.failures[node_id] = reason

    def ended(self) -> Mapping[str, str]:
        return dict(self.failures)

    async def terminate(self, node_id: str, *, grace_s: float) -> None:
        self.failures.pop(node_id, None)
        node = self.nodes.pop(node_id, None)
        if node is not None:
            await node.die()
        self.terminated.append(node_id)

    async def close(self, *, grace_s: float) -> None:
        for node in self.nodes.values():
            await node.die()


@dataclass
class Rig:
    """One scaler under test and what surrounds it."""

    store: RedisStore
    outside: RedisStore
    provider: Any
    controller: Controller
    book: OperationBook
    leadership: Leadership
    metrics: ScalerMetrics
    weights: list[FakeWeightNode] = field(default_factory=list)
    attention: list[FakeAttentionNode] = field(default_factory=list)

    async def add_weight(self, node_id: str = "w-1") -> FakeWeightNode:
        node = FakeWeightNode(node_id, self.outside)
        await node.start()
        self.weights.append(node)
        return node

    async def add_attention(self, node_id: str) -> FakeAttentionNode:
        """Start a node that the provider knows nothing of."""
        node = FakeAttentionNode(node_id, self.outside)
        await node.start()
        self.attention.append(node)
        return node

    async def begin(self, operation_id: str, target: int, **options: Any) -> Operation:
        arguments = {"deadline_s": 0.0, "deadline_covers_drain": False, **options}
        return await self.controller.set_target(operation_id, target, **arguments)

    async def scale(self, operation_id: str, target: int, **options: Any) -> Operation:
        """Begin an operation and wait for its end."""
        await self.begin(operation_id, target, **options)
        return await self.end(operation_id)

    async def end(self, operation_id: str) -> Operation:
        async with asyncio.timeout(WAIT_S):
            async for operation in self.book.watch(operation_id):
                last = operation
        return last

    async def reach(self, operation_id: str, phase: Phase) -> Operation:
        async with asyncio.timeout(WAIT_S):
            async for operation in self.book.watch(operation_id):
                if operation.phase is phase:
                    return operation
        raise AssertionError(f"{operation_id} ended without {phase}: {operation}")

    async def states(self) -> dict[str, NodeState]:
        return {node.node_id: node.state for node in (await self.outside.read()).nodes}

    async def settles_at(self, **states: NodeState) -> None:
        expected = {node_id.replace("_", "-"): state for node_id, state in states.items()}

        async def settled() -> bool:
            return await self.states() == expected and self.book.running is None

        await eventually(settled)


def route_on(*node_ids: str) -> SequenceRoute:
    route = SequenceRoute()
    for node_id in node_ids:
        route = route.with_tail(node_id).extended(3)
    return route


@asynccontextmanager
async def scaler_rig(
    url: str,
    *,
    make_provider: Callable[[RoutingStore], Provider] = FakeProvider,
    store_class: type[RedisStore] = RedisStore,
    initial_target: int | None = None,
    minimum: int = 1,
    scaling: ScalingPolicy | None = None,
    profile: PerformanceProfile | None = None,
    profile_digest: str = "",
    deadline_s: float = WAIT_S,
    release_s: float = WAIT_S,
    patience_s: float = WAIT_S,
    grace_s: float = 0.2,
    terminate_s: float = 5.0,
    runs: bool = True,
    tracer: Tracer = NO_TRACER,
) -> AsyncIterator[Rig]:
    clock, metrics = MonotonicClock(), ScalerMetrics()
    store = store_class(url, cluster=CLUSTER, timeout_s=WAIT_S)
    outside = RedisStore(url, cluster=CLUSTER, timeout_s=WAIT_S)
    leadership = Leadership(store, clock, ttl_s=LEASE_TTL_S)
    record = LeaseRecord(kind=NodeKind.SCALER, node_id="s-1", incarnation=new_incarnation(), address="here:1")
    await leadership.acquire(record, contact_timeout_s=WAIT_S)
    provider = make_provider(outside)
    channels = Channels(traced=tracer is not NO_TRACER)
    actors = Actors(
        store=store,
        table=Table(store, leadership, clock),
        provider=provider,
        weights=WeightNodes(
            store,
            clock,
            patience_s=patience_s,
            channels=channels,
            on_prepared=metrics.path_prepared,
        ),
        clock=clock,
        commit_patience_s=WAIT_S,
        release_timeout_s=release_s,
        terminate_grace_s=terminate_s,
        terminate_margin_s=terminate_s,
        channels=channels,
        tracer=tracer,
    )
    settings = ControllerSettings(
        policy=PolicySettings(
            scaling=scaling or ScalingPolicy(automatic=False, minimum_nodes=minimum, maximum_nodes=8),
            profile=profile,
            lost_grace_s=grace_s,
            retry_min_s=0.05,
            retry_max_s=0.2,
        ),
        initial_target=initial_target,
        operation_deadline_s=deadline_s,
        look_interval_s=0.05,
        scaler="s-1",
        profile_digest=profile_digest,
        keep_profile_s=0.1,
    )
    book = OperationBook(max_ended=10)
    controller = Controller(actors, book, metrics, DecisionLog(), settings)
    running = asyncio.create_task(controller.run()) if runs else None
    rig = Rig(store, outside, provider, controller, book, leadership, metrics)
    try:
        yield rig
    finally:
        if running is not None:
            assert not running.done(), running
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        await controller.close()
        await provider.close(grace_s=5.0)
        for node in (*rig.weights, *rig.attention):
            await node.die()
        await store.close()
        await outside.close()
