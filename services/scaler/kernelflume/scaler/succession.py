"""What a scaler makes of the one before it: the operation that was under way, and the nodes of it."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from kernelflume.core.routing import NodeState
from kernelflume.scaler.ending import end_nodes
from kernelflume.scaler.operation import OperationEvent, Phase

if TYPE_CHECKING:
    from kernelflume.core.routing import RoutingSnapshot
    from kernelflume.scaler.actors import Actors
    from kernelflume.scaler.book import OperationBook
    from kernelflume.scaler.held_number import HeldNumber
    from kernelflume.scaler.observe import Observation
    from kernelflume.scaler.operation import Operation
    from kernelflume.scaler.operation_records import OperationRecord, OperationRecords

logger = logging.getLogger(__name__)


class Succession:
    """Puts in order what an earlier scaler left, and answers for its operations. The controller uses it."""

    def __init__(
        self, actors: Actors, book: OperationBook, records: OperationRecords, held: HeldNumber
    ) -> None:
        self._actors = actors
        self._book = book
        self._records = records
        self._held = held

    async def take_over(self, observation: Observation) -> Operation | None:
        """Read the held number, and end the operation that was under way.

        Returns:
            That operation, if it was rolled back.

        Raises:
            UnavailableError: the store cannot be reached; call it again.
            ConflictError: another scaler leads.
        """
        await self._held.recall()
        record = await self._records.newest()
        if record is None:
            return None
        operation = settled(record, observation.snapshot, now_s=observation.now_s)
        if record.operation.done:
            self._book.put(operation)
            return None
        logger.warning("operation %s: %s", operation.operation_id, operation.reason or "it was published")
        if node_ids := leftovers(operation, observation.snapshot):
            logger.warning("%s left by an earlier scaler: ended", ", ".join(node_ids))
            await end_nodes(self._actors, node_ids)
        if operation.rolled_back:
            await self._held.put(record.held_before)
        # The last step: until it is done, whoever leads comes here again.
        await self._records.write(operation)
        self._book.put(operation)
        return operation if operation.rolled_back else None

    async def find(self, operation_id: str) -> Operation | None:
        """Return an operation of this scaler or, after ``take_over``, of one before; the book knows it then.

        Raises:
            UnavailableError: the store cannot be reached.
        """
        known = self._book.find(operation_id)
        if known is not None:
            return known
        record = await self._records.read(operation_id)
        if record is None:
            return None
        if not record.operation.done and record.leader == self._actors.table.fencing_token:
            return None  # of this scaler itself, which could not begin it
        snapshot = await self._actors.table.read()
        operation = settled(record, snapshot, now_s=self._actors.clock.now())
        self._book.recall(operation)
        return operation


def settled(record: OperationRecord, snapshot: RoutingSnapshot, *, now_s: float) -> Operation:
    """Return how an operation ended that its scaler cannot see through any more. Pure.

    Args:
        record: of the operation, done or not.
        snapshot: the routing table as that scaler left it.
        now_s: when that was found.
    """
    operation = record.operation
    if operation.done:
        return operation
    entries = {node_id: snapshot.find(node_id) for node_id in operation.node_ids}
    if operation.phase is Phase.PUBLISHING and all(
        entry is not None and entry.state is NodeState.ACTIVE for entry in entries.values()
    ):
        return operation.after(OperationEvent.PUBLISHED, now_s=now_s)  # only its answer was lost
    why = f"scaler {record.scaler} died or lost the leadership in phase {operation.phase}"
    if operation.phase is Phase.RETIRING and not any(entries.values()):
        operation = operation.after(OperationEvent.RETIRED, now_s=now_s)
    if operation.phase is Phase.ROLLING_BACK:
        ended = operation.after(OperationEvent.ROLLED_BACK, now_s=now_s)
        return replace(ended, reason=f"{operation.reason}; {why} meanwhile")
    names = ", ".join(operation.node_ids)
    if operation.phase is Phase.RELEASING:
        effect = f"{names} had left the routing table"
    elif operation.target < operation.initial:
        effect = f"the drain of {names} is rolled back" if names else "nothing was drained"
    else:
        effect = f"{names} rolled back" if names else "no node had been launched"
    failed = operation.after(OperationEvent.FAIL, now_s=now_s, reason=f"{why}: {effect}")
    return failed if failed.done else failed.after(OperationEvent.ROLLED_BACK, now_s=now_s)


def leftovers(operation: Operation, snapshot: RoutingSnapshot) -> tuple[str, ...]:
    """Return the nodes that an operation launched and no table names: whoever launched them ends them."""
    if operation.target < operation.initial or not operation.rolled_back:
        return ()
    return tuple(node_id for node_id in operation.node_ids if snapshot.find(node_id) is None)
