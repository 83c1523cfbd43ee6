"""Runs one scale operation at a time, to its end or back to its start."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kernelflume.core.errors import ConflictError, KernelFlumeError, LifecycleError
from kernelflume.runtime.clock import Deadline
from kernelflume.scaler.operation import Operation, OperationEvent, Phase
from kernelflume.scaler.scale_down import ScaleDown
from kernelflume.scaler.scale_up import ScaleUp
from kernelflume.scaler.traces import OperationTraces

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.scaler.actors import Actors, Scaling
    from kernelflume.scaler.book import OperationBook
    from kernelflume.scaler.metrics import ScalerMetrics
    from kernelflume.scaler.operation_records import OperationRecords

    OnEnd = Callable[[Operation, bool], None]

logger = logging.getLogger(__name__)


class OperationRunner:
    """Writes the operations that it runs to book and records, and is the ``Progress`` of each."""

    def __init__(
        self, actors: Actors, book: OperationBook, metrics: ScalerMetrics, records: OperationRecords
    ) -> None:
        self._records = records
        self._actors = actors
        self._book = book
        self._metrics = metrics
        self._traces = OperationTraces(actors.tracer)
        self._runner: asyncio.Task[None] | None = None
        self._work: asyncio.Task[None] | None = None
        self._may_publish = asyncio.Event()

    async def begin(
        self,
        operation: Operation,
        *,
        deadline_s: float,
        deadline_covers_drain: bool,
        held_before: str,
        on_end: OnEnd,
    ) -> Operation:
        """Start an operation, while none is running.

        Args:
            operation: in its first phase.
            deadline_s: bound of launching and prewarming.
            deadline_covers_drain: bound draining too.
            held_before: number of nodes that a person held before; empty for none. It holds again should this
                scaler not see the operation through.
            on_end: called with the ended operation, and whether it gave up because the pool changed under it.
                Not called for one that had nothing to do.

        Raises:
            UnavailableError: the store cannot be reached; nothing was begun.
            ConflictError: another scaler leads.
        """
        actors = self._actors
        await self._records.begin(operation, held_before=held_before)
        logger.info(
            "operation %s begins: %s -> %s attention nodes",
            operation.operation_id,
            operation.initial,
            operation.target,
        )
        self._put(operation)
        if operation.done:
            return operation
        self._may_publish = asyncio.Event()
        if not operation.is_held:
            self._may_publish.set()
        deadline = Deadline(actors.clock, deadline_s)
        scaling: Scaling
        if operation.target > operation.initial:
            scaling = ScaleUp(actors, self, operation.target - operation.initial, deadline)
        else:
            drain_deadline = deadline if deadline_covers_drain else None
            scaling = ScaleDown(
                actors, self, operation.target, victims=operation.node_ids, drain_deadline=drain_deadline
            )
        self._work = asyncio.create_task(
            scaling.run(), name=f"operation {operation.operation_id}", context=self._traces.context()
        )
        self._runner = asyncio.create_task(
            self._see_through(scaling, self._work, on_end), context=self._traces.context()
        )
        return operation

    def publish(self) -> None:
        """Let the running operation publish its prewarmed nodes, now or as soon as there are some."""
        self._may_publish.set()

    def cancel(self, operation_id: str, reason: str = "cancelled on request") -> Operation:
        """Stop an operation and undo what it did; one that has ended, or is being undone, is left as it is.

        Raises:
            NotFoundError: there is no such operation.
            LifecycleError: it is past its point of no return.
        """
        operation = self._book.get(operation_id)
        if operation.done or operation.phase is Phase.ROLLING_BACK:
            return operation
        if self._work is None or not operation.allows(OperationEvent.CANCEL):
            raise LifecycleError(f"operation {operation_id} is {operation.phase}: too late to cancel it")
        self._move(OperationEvent.CANCEL, reason)
        self._work.cancel()
        return self._book.get(operation_id)

    async def close(self) -> None:
        """Drop the running operation where it stands; the next leader puts the table right."""
        tasks = [task for task in (self._runner, self._work) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._traces.abandon()
        await self._records.close()

    def advance(self, event: OperationEvent) -> None:
        """Move the running operation to its next phase."""
        self._move(event)

    async def wait_publish(self) -> None:
        """Wait for ``publish``, unless the operation is not held."""
        await self._may_publish.wait()

    def name_nodes(self, *node_ids: str) -> None:
        """Name the nodes that the running operation adds or removes."""
        self._put(self._running().with_nodes(*node_ids))

    async def _see_through(self, scaling: Scaling, work: asyncio.Task[None], on_end: OnEnd) -> None:
        await asyncio.wait([work])
        overtaken = False
        if not work.cancelled() and (error := work.exception()) is not None:
            overtaken = isinstance(error, ConflictError)
            if not isinstance(error, KernelFlumeError):
                logger.error("operation failed unexpectedly", exc_info=error)
            # It may have failed in the moment in which it was cancelled: then it is rolled back already.
            if self._running().allows(OperationEvent.FAIL):
                self._move(OperationEvent.FAIL, str(error) or type(error).__name__)
        newest = self._book.newest
        if newest is not None and newest.phase is Phase.ROLLING_BACK:
            try:
                await scaling.roll_back()
            except Exception:
                # Whatever is left over, the policy finds at its next look.
                logger.exception("rolling back operation %s failed", newest.operation_id)
            self._move(OperationEvent.ROLLED_BACK)
        ended = self._book.newest
        if ended is not None:
            on_end(ended, overtaken)

    def _running(self) -> Operation:
        operation = self._book.running
        if operation is None:
            raise LifecycleError("no operation is running")
        return operation

    def _move(self, event: OperationEvent, reason: str = "") -> None:
        before = self._running()
        now_s = self._actors.clock.now()
        after = before.after(event, now_s=now_s, reason=reason)
        self._metrics.phase_ended(after.history[-2], now_s)
        logger.info(
            "operation %s: %s -> %s%s",
            after.operation_id,
            before.phase,
            after.phase,
            f" ({reason})" if reason else "",
        )
        self._put(after)

    def _put(self, operation: Operation) -> None:
        self._book.put(operation)
        self._records.follow(operation)
        self._traces.follow(operation)
        if operation.result is not None:
            self._metrics.operation_ended(operation.result)
