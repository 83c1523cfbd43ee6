"""Edits of the routing table that belong to no operation: losses, strays and thresholds."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kernelflume.core.errors import KernelFlumeError
from kernelflume.core.routing import NodeEvent, NodeState
from kernelflume.runtime.clock import Deadline
from kernelflume.scaler.ending import end_nodes
from kernelflume.scaler.policy import RemovalReason, is_owned

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kernelflume.core.routing import AttentionNodeEntry, RoutingSnapshot
    from kernelflume.scaler.actors import Actors
    from kernelflume.scaler.book import OperationBook
    from kernelflume.scaler.metrics import ScalerMetrics
    from kernelflume.scaler.policy import Removal

logger = logging.getLogger(__name__)


class Upkeep:
    """Carries out what the policy decides beside the size. Used by the controller alone."""

    def __init__(
        self, actors: Actors, book: OperationBook, metrics: ScalerMetrics, on_removed: Callable[[], None]
    ) -> None:
        """Call ``on_removed`` after nodes were taken out of the table."""
        self._actors = actors
        self._book = book
        self._metrics = metrics
        self._on_removed = on_removed
        self._cleanups: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Give up what is still being ended."""
        for task in self._cleanups:
            task.cancel()
        await asyncio.gather(*self._cleanups, return_exceptions=True)

    async def set_thresholds(self, thresholds: Mapping[str, int]) -> None:
        """Tell weight nodes up to where nodes are planned with."""

        def changed(snapshot: RoutingSnapshot) -> RoutingSnapshot | None:
            present = {key: tokens for key, tokens in thresholds.items() if snapshot.find(key) is not None}
            return snapshot.with_thresholds(present) if present else None

        await self._actors.table.edit(changed)

    async def resume(self, node_ids: tuple[str, ...]) -> None:
        """Make draining nodes active again, which no operation drains."""
        logger.warning("nobody drains %s: resumed", ", ".join(node_ids))

        def resumed(snapshot: RoutingSnapshot) -> RoutingSnapshot | None:
            strays = [
                node.node_id
                for node in snapshot.in_state(NodeState.DRAINING)
                if node.node_id in node_ids and not is_owned(node, self._book.running)
            ]
            return snapshot.with_event(NodeEvent.RESUME, *strays) if strays else None

        await self._actors.table.edit(resumed)

    async def remove(self, removals: tuple[Removal, ...]) -> None:
        """Take nodes out of the table at once, then end what may be left of them."""
        decided = {(removal.node_id, removal.incarnation, removal.state): removal for removal in removals}
        removed: list[tuple[AttentionNodeEntry, Removal]] = []

        def without_lost(snapshot: RoutingSnapshot) -> RoutingSnapshot | None:
            removed[:] = [
                (node, removal)
                for node in snapshot.nodes
                if (removal := decided.get((node.node_id, node.incarnation, node.state))) is not None
                # An operation may have begun since it was decided.
                and not (removal.reason is RemovalReason.ABANDONED and is_owned(node, self._book.running))
            ]
            return snapshot.without(*(node.node_id for node, _ in removed)) if removed else None

        snapshot = await self._actors.table.edit(without_lost)
        for entry, removal in removed:
            self._metrics.node_removed(removal.reason)
            logger.warning(
                "attention node %s is out of the routing table at epoch %s (%s): %s",
                entry.name,
                snapshot.epoch,
                removal.reason,
                removal.detail,
            )
            task = asyncio.create_task(self._end(entry), name=f"end {entry.name}")
            self._cleanups.add(task)
            task.add_done_callback(self._cleanups.discard)
        self._on_removed()

    async def _end(self, entry: AttentionNodeEntry) -> None:
        actors = self._actors
        await end_nodes(actors, [entry.node_id])
        try:
            await actors.weights.release([entry], Deadline(actors.clock, actors.release_timeout_s))
        except KernelFlumeError as error:
            logger.warning("after the loss of %s %s", entry.name, error)
