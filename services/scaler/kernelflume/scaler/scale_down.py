"""Scale-down: drain, retire, release. A node ends only once nothing refers to it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kernelflume.core.errors import ConflictError, KernelFlumeError
from kernelflume.core.leases import NodeKind
from kernelflume.core.routing import NodeEvent, NodeState
from kernelflume.runtime.clock import Deadline
from kernelflume.scaler.ending import end_nodes
from kernelflume.scaler.operation import OperationEvent
from kernelflume.scaler.policy import choose_victims
from kernelflume.scaler.waiting import wait_until
from kernelflume.scaler.weights import behind

if TYPE_CHECKING:
    from kernelflume.core.routing import AttentionNodeEntry, RoutingSnapshot
    from kernelflume.scaler.actors import Actors, Progress

logger = logging.getLogger(__name__)

_DRAIN_INTERVAL_S = 0.2


class ScaleDown:
    """Removes active nodes down to ``target``. Used once."""

    def __init__(
        self,
        actors: Actors,
        progress: Progress,
        target: int,
        *,
        victims: tuple[str, ...],
        drain_deadline: Deadline | None,
    ) -> None:
        """Remove ``victims``, or if there are none those that are the least trouble."""
        self._actors = actors
        self._progress = progress
        self._target = target
        self._drain_deadline = drain_deadline
        self._victims = victims

    async def run(self) -> None:
        """Drain, retire, release.

        Raises:
            KernelFlumeError: it did not work out; call ``roll_back`` unless the nodes are retired.
        """
        actors, progress = self._actors, self._progress
        await self._choose()
        draining = await actors.table.edit(self._drained)
        await self._wait_unused(draining.epoch)
        progress.advance(OperationEvent.DRAINED)
        retired = await actors.table.edit(self._retired, patience_s=actors.commit_patience_s)
        progress.advance(OperationEvent.RETIRED)
        await self._release(retired)
        progress.advance(OperationEvent.RELEASED)

    async def _choose(self) -> None:
        if self._victims:
            return
        actors = self._actors
        leases = {record.node_id: record for record in await actors.store.living(NodeKind.ATTENTION)}
        active = (await actors.table.read()).in_state(NodeState.ACTIVE)
        count = len(active) - self._target
        order = actors.provider.victim_order([node.node_id for node in active])
        self._victims = (
            choose_victims(active, leases, count)
            if order is None
            else tuple(order[: max(0, min(count, len(active) - 1))])
        )
        self._progress.name_nodes(*self._victims)

    def _drained(self, snapshot: RoutingSnapshot) -> RoutingSnapshot:
        self._check_enough(snapshot, self._victims)
        return snapshot.with_event(NodeEvent.DRAIN, *self._victims)

    def _check_enough(self, snapshot: RoutingSnapshot, leaving: tuple[str, ...] = ()) -> None:
        """Refuse to go on when a loss has left fewer active nodes than are wanted."""
        active = snapshot.in_state(NodeState.ACTIVE)
        staying = [node.node_id for node in active if node.node_id not in leaving]
        if len(staying) < max(1, self._target):
            raise ConflictError(
                f"nodes were lost meanwhile: {len(staying)} of {self._target} active ones would remain"
            )

    def _ours(self, snapshot: RoutingSnapshot, state: NodeState) -> tuple[AttentionNodeEntry, ...]:
        return tuple(node for node in snapshot.in_state(state) if node.node_id in self._victims)

    async def _wait_unused(self, epoch: int) -> None:
        """Wait until nothing refers to the nodes that drain since ``epoch``."""

        async def probe() -> str | None:
            store = self._actors.store
            snapshot = await self._actors.table.read()
            draining = {node.node_id for node in self._still_draining(snapshot)}
            if not draining:
                return None  # all of them were lost
            self._check_enough(snapshot)
            # Readers first: one that still uses an older epoch may yet place a range that the routes, read
            # before, would not show.
            late = behind(await store.living(NodeKind.WEIGHT), epoch)
            if late is not None:
                return late
            for weight_node, routes in (await store.routes()).items():
                for sequence_id, route in routes.items():
                    held = draining.intersection(route.node_ids)
                    if held:
                        return f"sequence {sequence_id} of {weight_node} has ranges on {min(held)}"
            for record in await store.living(NodeKind.ATTENTION):
                if record.node_id in draining and record.load.num_sequences:
                    return f"{record.name} holds {record.load.num_sequences} sequences"
            return None

        await wait_until(probe, self._drain_deadline, interval_s=_DRAIN_INTERVAL_S)

    def _still_draining(self, snapshot: RoutingSnapshot) -> tuple[AttentionNodeEntry, ...]:
        """Return our nodes but those that were lost; refuse to go on when one was made routable again."""
        for node_id in self._victims:
            node = snapshot.find(node_id)
            if node is not None and node.state is not NodeState.DRAINING:
                raise ConflictError(f"attention node {node_id} is {node.state} and does not drain any more")
        return self._ours(snapshot, NodeState.DRAINING)

    def _retired(self, snapshot: RoutingSnapshot) -> RoutingSnapshot | None:
        if self._ours(snapshot, NodeState.RETIRED):
            return None  # an earlier try succeeded, only its answer was lost
        draining = self._still_draining(snapshot)
        if not draining:
            return None
        return snapshot.with_event(NodeEvent.RETIRE, *(node.node_id for node in draining))

    async def _release(self, retired: RoutingSnapshot) -> None:
        """End the nodes after the last reader's epoch; a reader that hangs is not waited for without end."""
        actors = self._actors
        deadline = Deadline(actors.clock, actors.release_timeout_s)
        entries = self._ours(retired, NodeState.RETIRED)
        failure: KernelFlumeError | None = None
        try:
            await actors.weights.wait_adopted(retired.epoch, deadline)
            await actors.weights.release(entries, deadline)
        except KernelFlumeError as error:
            failure = error
        await end_nodes(actors, self._victims)

        def without_ours(snapshot: RoutingSnapshot) -> RoutingSnapshot | None:
            gone = self._ours(snapshot, NodeState.RETIRED)
            return snapshot.without(*(node.node_id for node in gone)) if gone else None

        await actors.table.edit(without_ours, patience_s=actors.commit_patience_s)
        if failure is not None:
            raise failure

    async def roll_back(self) -> None:
        """Make the nodes routable again."""

        def resumed(snapshot: RoutingSnapshot) -> RoutingSnapshot | None:
            draining = self._ours(snapshot, NodeState.DRAINING)
            if not draining:
                return None
            return snapshot.with_event(NodeEvent.RESUME, *(node.node_id for node in draining))

        try:
            await self._actors.table.edit(resumed, patience_s=self._actors.commit_patience_s)
        except KernelFlumeError as error:
            # The policy resumes draining nodes that no operation drains, once the store is back.
            logger.warning("nodes of a stopped scale-down stay draining for now: %s", error)
