"""The node's lease, renewed with its load, and the end of links whose weight node lost its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from kernelflume.anode.control import Disconnected, DisconnectOrder, StatisticsOrder, WorkerStatistics
from kernelflume.core.errors import KernelFlumeError, UnavailableError
from kernelflume.core.leases import LeaseRecord, NodeKind, NodeLoad

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.anode.process import WorkerProcess
    from kernelflume.anode.reaper import LeaseReaper
    from kernelflume.runtime.clock import Clock
    from kernelflume.store.base import LeaseStore

logger = logging.getLogger(__name__)

_CALL_TIMEOUT_S = 10.0


class Presence:
    """Runs beside the gRPC server for as long as the node lives."""

    def __init__(
        self,
        *,
        record: LeaseRecord,
        page_tokens: int,
        worker: WorkerProcess,
        store: LeaseStore,
        reaper: LeaseReaper,
        clock: Clock,
        ttl_s: float,
        load_interval_s: float,
        tell: Callable[[WorkerStatistics], None] | None = None,
    ) -> None:
        """Set up; ``tell`` is given the worker's figures at every renewal."""
        self._record = record
        self._page_tokens = page_tokens
        self._worker = worker
        self._store = store
        self._reaper = reaper
        self._clock = clock
        self._ttl_s = ttl_s
        self._interval_s = min(ttl_s / 3, load_interval_s)
        self._tell = tell
        self._is_reachable = True
        self._renewal: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Renew and reap at every interval, until cancelled.

        Raises:
            KernelFlumeError: the worker does not answer.
        """
        while True:
            # A renewal that was cut off could reach the store after the lease was given up.
            self._renewal = asyncio.ensure_future(self.renew())
            await asyncio.shield(self._renewal)
            await asyncio.sleep(self._interval_s)

    async def renew(self) -> None:
        """Renew the lease once, and drop the links whose weight node is gone."""
        statistics = await self._worker.call(StatisticsOrder(), WorkerStatistics, timeout_s=_CALL_TIMEOUT_S)
        if self._tell is not None:
            self._tell(statistics)
        load = NodeLoad(
            capacity_tokens=statistics.num_pages * self._page_tokens,
            used_tokens=statistics.num_tokens,
            reserved_tokens=(statistics.num_pages - statistics.num_free_pages) * self._page_tokens,
            num_sequences=sum(link.num_sequences for link in statistics.links),
            scan_bytes_per_s=statistics.scan_bytes_per_s,
            cached_tokens=statistics.num_cached_tokens,
            shared_tokens=statistics.tokens_shared,
            pinned_tokens=statistics.num_pinned_tokens,
        )
        living: set[str] | None = None
        try:
            await self._store.renew(replace(self._record, load=load), ttl_s=self._ttl_s)
            living = {record.name for record in await self._store.living(NodeKind.WEIGHT)}
        except UnavailableError as error:
            if self._is_reachable:
                logger.warning("the lease cannot be renewed: %s", error)
        self._is_reachable = living is not None
        linked = [link.weight_node for link in statistics.links]
        gone = self._reaper.observe(linked, living, self._clock.now())
        if gone:
            order = DisconnectOrder(gone, "its lease ran out")
            await self._worker.call(order, Disconnected, timeout_s=_CALL_TIMEOUT_S)

    async def leave(self) -> None:
        """Give the lease up, if the store can be reached; ``run`` has ended or been cancelled."""
        if self._renewal is not None:
            await asyncio.wait({self._renewal}, timeout=_CALL_TIMEOUT_S)
        with contextlib.suppress(KernelFlumeError):
            await self._store.release(NodeKind.ATTENTION, self._record.node_id, self._record.incarnation)
