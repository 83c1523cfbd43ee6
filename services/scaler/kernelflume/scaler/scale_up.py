"""Scale-up: launch, prewarm, publish. Nothing is routable before the one publish at the end."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kernelflume.core.errors import ConflictError, DeadlineError, KernelFlumeError, PeerLostError
from kernelflume.core.leases import NodeKind
from kernelflume.core.routing import AttentionNodeEntry, NodeEvent, NodeState
from kernelflume.runtime.clock import Deadline
from kernelflume.scaler.ending import end_nodes
from kernelflume.scaler.operation import OperationEvent
from kernelflume.scaler.waiting import POLL_INTERVAL_S, first_of, is_serving, wait_until

if TYPE_CHECKING:
    from kernelflume.core.leases import LeaseRecord
    from kernelflume.core.routing import RoutingSnapshot
    from kernelflume.scaler.actors import Actors, Progress

logger = logging.getLogger(__name__)


class ScaleUp:
    """Adds ``count`` nodes in one epoch, or none. Used once."""

    def __init__(self, actors: Actors, progress: Progress, count: int, deadline: Deadline) -> None:
        self._actors = actors
        self._progress = progress
        self._count = count
        self._deadline = deadline
        self._launched: list[str] = []
        self._entries: tuple[AttentionNodeEntry, ...] = ()
        self._publishing = False

    async def run(self) -> None:
        """Launch, prewarm, publish when told to.

        Raises:
            KernelFlumeError: it did not work out; call ``roll_back``.
        """
        actors, progress = self._actors, self._progress
        try:
            async with asyncio.timeout(self._deadline.remaining_s):
                await self._launch()
        except TimeoutError:
            raise DeadlineError(
                f"after {self._deadline.seconds:g} s {len(self._launched)} of {self._count} attention nodes "
                "have been launched"
            ) from None
        self._entries = tuple(map(_entry, await self._wait_ready()))
        progress.advance(OperationEvent.LAUNCHED)
        await actors.table.edit(lambda snapshot: snapshot.with_node(*self._entries))
        await first_of(actors.weights.prepare(self._entries, self._deadline), self._watch())
        await actors.table.edit(
            lambda snapshot: snapshot.with_event(NodeEvent.PREPARED, *self._present_ids(snapshot))
        )
        progress.advance(OperationEvent.PREPARED)
        await first_of(progress.wait_publish(), self._watch())
        progress.advance(OperationEvent.PUBLISH)
        self._publishing = True
        await actors.table.edit(self._published, patience_s=actors.commit_patience_s)
        progress.advance(OperationEvent.PUBLISHED)

    async def _launch(self) -> None:
        actors = self._actors
        taken = {node.node_id for node in (await actors.table.read()).nodes}
        if not actors.provider.reuses_ids:
            living = await actors.store.living(NodeKind.ATTENTION)
            taken |= actors.table.seen_node_ids | {record.node_id for record in living}
        for _ in range(self._count):
            node_id = await actors.provider.launch(taken)
            taken.add(node_id)
            self._launched.append(node_id)
            self._progress.name_nodes(*self._launched)

    async def _wait_ready(self) -> list[LeaseRecord]:
        """Wait until each launched node holds its lease and serves; all start side by side."""
        ready: dict[str, LeaseRecord] = {}

        async def probe() -> str | None:
            self._check_running()
            living = {
                record.node_id: record for record in await self._actors.store.living(NodeKind.ATTENTION)
            }
            missing: str | None = None
            for node_id in self._launched:
                if node_id not in living:
                    missing = f"attention node {node_id} has not taken its lease"
                elif ready.get(node_id) != living[node_id]:
                    if await is_serving(living[node_id].address, self._actors.channels):
                        ready[node_id] = living[node_id]
                    else:
                        missing = f"attention node {node_id} is not serving at {living[node_id].address}"
            return missing

        await wait_until(probe, self._deadline)
        return [ready[node_id] for node_id in self._launched]

    def _check_running(self) -> None:
        ended = self._actors.provider.ended()
        for node_id in self._launched:
            if node_id in ended:
                raise PeerLostError(f"attention node {node_id}", ended[node_id])

    async def _watch(self) -> None:
        """Raise as soon as the process of a launched node ends."""
        while True:
            self._check_running()
            await asyncio.sleep(POLL_INTERVAL_S)

    def _present_ids(self, snapshot: RoutingSnapshot) -> list[str]:
        """Return our nodes' ids, all of which must still be in the table as the start that we launched."""
        for entry in self._entries:
            found = snapshot.find(entry.node_id)
            if found is None or found.name != entry.name:
                raise ConflictError(f"{entry.name} was taken out of the routing table meanwhile")
        return [entry.node_id for entry in self._entries]

    def _published(self, snapshot: RoutingSnapshot) -> RoutingSnapshot | None:
        node_ids = self._present_ids(snapshot)
        if all(snapshot.get(node_id).state is NodeState.ACTIVE for node_id in node_ids):
            return None  # an earlier try succeeded, only its answer was lost
        return snapshot.with_event(NodeEvent.PUBLISH, *node_ids)

    async def roll_back(self) -> None:
        """Take the nodes out of the table, let weight nodes forget them, and end their processes."""
        actors = self._actors
        names = {entry.name for entry in self._entries}
        routable: set[str] = set()

        def without_ours(snapshot: RoutingSnapshot) -> RoutingSnapshot | None:
            ours = [node for node in snapshot.nodes if node.name in names]
            routable.update(node.node_id for node in ours if node.state is NodeState.ACTIVE)
            gone = [node.node_id for node in ours if node.state is not NodeState.ACTIVE]
            return snapshot.without(*gone) if gone else None

        try:
            await actors.table.edit(without_ours, patience_s=actors.commit_patience_s)
        except KernelFlumeError as error:
            logger.warning("nodes of a failed scale-up stay in the routing table for now: %s", error)
            if self._publishing:
                routable.update(self._launched)
        # A publish whose answer never came may have made them routable: then they are drained, not killed.
        ended = [node_id for node_id in self._launched if node_id not in routable]
        entries = [entry for entry in self._entries if entry.node_id in ended]
        try:
            await actors.weights.release(entries, Deadline(actors.clock, actors.release_timeout_s))
        except KernelFlumeError as error:
            logger.warning("after a failed scale-up %s", error)
        await end_nodes(actors, ended)


def _entry(record: LeaseRecord) -> AttentionNodeEntry:
    return AttentionNodeEntry(
        node_id=record.node_id,
        incarnation=record.incarnation,
        address=record.address,
        state=NodeState.PREWARMING,
        capacity_tokens=record.load.capacity_tokens,
        threshold_tokens=record.load.capacity_tokens,
    )
