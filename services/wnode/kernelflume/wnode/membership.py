"""Following the routing table: prepare what a new snapshot needs, then let the engine adopt it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kernelflume.core.errors import KernelFlumeError, UnavailableError
from kernelflume.core.routing import NodeState, RoutingSnapshot
from kernelflume.wnode.messages import Adopt

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.core.routing import AttentionNodeEntry
    from kernelflume.store.base import MembershipStore
    from kernelflume.wnode.endpoints import Endpoints
    from kernelflume.wnode.messages import Command

logger = logging.getLogger(__name__)

_ROUTABLE = (NodeState.ACTIVE, NodeState.DRAINING)


class MembershipFollower:
    """Reads the table at every notice and at every poll; a lost store leaves the last snapshot in use.

    One that was started again empty counts as lost, until the table is in it again.

    A snapshot is adopted at once. A node in it that has no warm path yet is not used before it has one: the
    scaler prepares nodes before it publishes them, so this happens only to a weight node that starts late
    and to a path that broke.
    """

    def __init__(
        self,
        store: MembershipStore,
        endpoints: Endpoints,
        send: Callable[[Command], None],
        *,
        poll_interval_s: float,
    ) -> None:
        self._store = store
        self._endpoints = endpoints
        self._send = send
        self._poll_interval_s = poll_interval_s
        self._preparing: dict[str, asyncio.Task[None]] = {}
        self.snapshot = RoutingSnapshot(epoch=-1)

    async def run(self) -> None:
        """Follow until cancelled."""
        is_store_lost = False
        try:
            while True:
                try:
                    await self._follow()
                    if is_store_lost:
                        logger.info("routing table is back, at epoch %d", self.snapshot.epoch)
                    is_store_lost = False
                    await self._store.wait_notice(timeout_s=self._poll_interval_s)
                except UnavailableError as error:
                    if not is_store_lost:
                        logger.warning("going on with epoch %d: %s", self.snapshot.epoch, error)
                    is_store_lost = True
                    await asyncio.sleep(self._poll_interval_s)
        finally:
            for task in self._preparing.values():
                task.cancel()

    async def _follow(self) -> None:
        snapshot = await self._store.read()
        if snapshot.epoch < self.snapshot.epoch:
            # Epochs only grow. The scaler writes the table back, or goes on after the epoch that this node
            # reports; until then its nodes are where they were.
            raise UnavailableError(f"the store lost the routing table, it is at epoch {snapshot.epoch}")
        if snapshot.epoch > self.snapshot.epoch:
            self.snapshot = snapshot
            self._send(Adopt(snapshot))
        for node in snapshot.in_state(*_ROUTABLE):
            if not self._endpoints.is_prepared(node.name) and node.name not in self._preparing:
                self._preparing[node.name] = asyncio.create_task(self._prepare(node))

    async def _prepare(self, node: AttentionNodeEntry) -> None:
        try:
            await self._endpoints.prepare(node.name, node.address)
            # Adopting the same epoch again gives the node its share of the tails.
            self._send(Adopt(self.snapshot))
        except KernelFlumeError as error:
            logger.warning("attention node %s cannot be used yet: %s", node.name, error)
            await asyncio.sleep(self._poll_interval_s)
        finally:
            self._preparing.pop(node.name, None)
