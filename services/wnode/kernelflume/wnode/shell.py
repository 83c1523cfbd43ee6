"""The weight node around its engine: requests in, tokens out, lease, routes and metrics."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from typing import TYPE_CHECKING

from kernelflume.core.errors import UnavailableError
from kernelflume.core.leases import LeaseRecord, NodeKind, NodeLoad
from kernelflume.core.names import node_name
from kernelflume.wnode.endpoints import Endpoints
from kernelflume.wnode.membership import MembershipFollower
from kernelflume.wnode.messages import (
    Adopted,
    EngineFailed,
    EngineReport,
    LinkClosed,
    LinkFailed,
    LinkLost,
    LinkOffer,
    LinkReady,
    RoutesChanged,
    StepOutput,
)
from kernelflume.wnode.requests import RequestTable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kernelflume.checkpoint.config import ModelConfig
    from kernelflume.core.geometry import KvGeometry
    from kernelflume.core.ranges import SequenceRoute
    from kernelflume.rpc.channel import Channels
    from kernelflume.store.base import RoutingStore
    from kernelflume.wnode.engine_client import EngineClient
    from kernelflume.wnode.grammar.compiler import GrammarCompiler
    from kernelflume.wnode.messages import Event
    from kernelflume.wnode.metrics import WeightNodeMetrics
    from kernelflume.wnode.settings import WeightNodeSettings

logger = logging.getLogger(__name__)


class Shell:
    """Everything of a weight node that is not the step loop; owned by the event loop."""

    def __init__(
        self,
        *,
        settings: WeightNodeSettings,
        incarnation: str,
        config: ModelConfig,
        geometry: KvGeometry,
        max_model_len: int,
        engine: EngineClient,
        store: RoutingStore,
        metrics: WeightNodeMetrics,
        channels: Channels,
        grammars: GrammarCompiler,
    ) -> None:
        self.settings = settings
        self.config = config
        self.geometry = geometry
        self.max_model_len = max_model_len
        self.report: EngineReport | None = None
        self.adopted_epoch = 0
        self.requests = RequestTable(
            engine.send,
            max_in_flight=settings.max_num_seqs + settings.max_num_waiting,
            max_model_len=max_model_len,
            vocab_size=config.vocab_size,
            compile_grammar=grammars.compile,
        )
        self.endpoints = Endpoints(
            engine.send, timeout_s=settings.prepare_timeout_s, channels=channels
        )  # fmt: skip
        self._follower = MembershipFollower(
            store, self.endpoints, engine.send, poll_interval_s=settings.poll_interval_s
        )
        self._incarnation = incarnation
        self._store = store
        self._metrics = metrics
        self._routes: dict[int, SequenceRoute] = {}
        self._ended: set[int] = set()
        self._routes_changed = asyncio.Event()
        self._lease_due = asyncio.Event()

    @property
    def name(self) -> str:
        """node_id#incarnation."""
        return node_name(self.settings.node_id, self._incarnation)

    def deliver(self, event: Event) -> None:
        """Take in one event of the engine."""
        match event:
            case StepOutput():
                self.requests.deliver(event)
                self._metrics.take_outputs(event)
            case LinkOffer() | LinkReady() | LinkFailed() | LinkClosed():
                self.endpoints.deliver(event)
            case LinkLost():
                self._metrics.take_lost(event)
                self.endpoints.deliver(event)
            case Adopted():
                self.adopted_epoch = event.epoch
                self._metrics.take_adopted(event)
                self._lease_due.set()  # the scaler waits for the adopted epoch
            case RoutesChanged():
                self._routes.update(event.routes)
                for sequence_id in event.ended:
                    self._routes.pop(sequence_id, None)
                self._ended.update(event.ended)
                self._routes_changed.set()
            case EngineReport():
                self._take_report(event)
            case EngineFailed():
                self.requests.fail_all(event.reason)
            case _:
                return

    def _take_report(self, report: EngineReport) -> None:
        self.report = report
        self._metrics.take_report(report)
        self._routes.update(
            (sequence.sequence_id, sequence.route)
            for sequence in report.sequences
            if sequence.sequence_id in self._routes
        )

    async def run(self, address: str) -> None:
        """Follow the table, hold the lease and publish routes, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follower.run())
                tasks.create_task(self._hold_lease(address))
                tasks.create_task(self._publish_routes())
        finally:
            await self._leave()

    async def _hold_lease(self, address: str) -> None:
        ttl_s = self.settings.lease_ttl_s
        routes_due_at = 0.0
        renewed_at = math.inf
        is_store_lost = False
        while True:
            try:
                await self._store.renew(self._record(address), ttl_s=ttl_s)
                is_store_lost = False
                lapsed_s, renewed_at = time.monotonic() - renewed_at, time.monotonic()
                if lapsed_s > ttl_s:
                    logger.warning("the lease was not renewed for %.1f s: the links are verified", lapsed_s)
                    await self.endpoints.verify()
                if self._routes and time.monotonic() >= routes_due_at:  # tails grow without an event
                    await self._store.put_routes(self.name, dict(self._routes))
                    routes_due_at = time.monotonic() + ttl_s / 3
            except UnavailableError as error:
                if not is_store_lost:
                    logger.warning("lease not renewed: %s", error)
                is_store_lost = True
            self._lease_due.clear()
            try:
                async with asyncio.timeout(min(ttl_s / 3, self.settings.load_interval_s)):
                    await self._lease_due.wait()
            except TimeoutError:
                continue

    async def _publish_routes(self) -> None:
        while True:
            await self._routes_changed.wait()
            self._routes_changed.clear()
            ended, self._ended = self._ended, set()
            try:
                await self._store.put_routes(self.name, dict(self._routes), ended=sorted(ended))
            except UnavailableError as error:
                logger.warning("routes not published: %s", error)
                self._ended |= ended
                self._routes_changed.set()
                await asyncio.sleep(self.settings.poll_interval_s)

    async def _leave(self) -> None:
        try:
            await self._store.drop_weight_node(self.name)
            await self._store.release(NodeKind.WEIGHT, self.settings.node_id, self._incarnation)
        except UnavailableError as error:
            logger.warning("could not say good-bye: %s", error)

    def _record(self, address: str) -> LeaseRecord:
        report = self.report
        return LeaseRecord(
            kind=NodeKind.WEIGHT,
            node_id=self.settings.node_id,
            incarnation=self._incarnation,
            address=address,
            load=NodeLoad(
                adopted_epoch=self.adopted_epoch,
                prepared_nodes=self.endpoints.prepared,
                num_requests_running=report.num_running if report else 0,
                num_requests_waiting=report.num_waiting if report else 0,
                used_tokens=report.num_tokens if report else 0,
                num_sequences=len(self._routes),
                waiting_tokens=report.num_waiting_tokens if report else 0,
                tails=tuple(sorted(_tails(self._routes.values()).items())),
                decode_step_s=report.decode_step_s if report else 0.0,
                num_decode_rows=report.num_decode_rows if report else 0,
                step_times=report.step_times if report else None,
                role=self.settings.role,
            ),
        )


def _tails(routes: Iterable[SequenceRoute]) -> Counter[str]:
    """Count the tails on each attention node."""
    return Counter(route.tail_node_id for route in routes if route.tail_node_id is not None)
