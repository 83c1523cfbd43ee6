"""Operations of the policy's own: how they begin, are given up, and give way to people's."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from kernelflume.core.routing import NodeState
from kernelflume.scaler.operation import Operation, OperationEvent, Origin

if TYPE_CHECKING:
    from kernelflume.scaler.actors import Actors
    from kernelflume.scaler.book import OperationBook
    from kernelflume.scaler.policy import Decision
    from kernelflume.scaler.runner import OnEnd, OperationRunner


class OwnOperations:
    """Begins and ends what the policy decides on. The controller holds its lock but for ``cancel``."""

    def __init__(self, actors: Actors, book: OperationBook, runner: OperationRunner) -> None:
        self._actors = actors
        self._book = book
        self._runner = runner

    async def begin(
        self, decision: Decision, target: int, *, deadline_s: float, held_before: str, on_end: OnEnd
    ) -> None:
        """Start an operation, unless a person's has begun since it was decided.

        Raises:
            UnavailableError: the store cannot be reached.
            ConflictError: another scaler leads.
        """
        if self._book.running is not None:
            return
        snapshot = await self._actors.table.read()
        operation = Operation.begin(
            f"{decision.scale_reason}-{secrets.token_hex(4)}",
            target=target,
            initial=len(snapshot.in_state(NodeState.ACTIVE)),
            now_s=self._actors.clock.now(),
            origin=Origin.POLICY,
            cause=str(decision.scale_reason),
            is_held=decision.is_held,
        )
        await self._runner.begin(
            operation,
            deadline_s=deadline_s,
            deadline_covers_drain=False,
            held_before=held_before,
            on_end=on_end,
        )

    def cancel(self, decision: Decision) -> None:
        """Undo a running operation that is not needed any more, if it still can be."""
        running = self._running()
        reason = decision.sized.sizing.reason if decision.sized is not None else ""
        if running is not None and running.allows(OperationEvent.CANCEL):
            self._runner.cancel(running.operation_id, f"the policy gave it up: {reason}")

    async def give_way(self, *, timeout_s: float) -> None:
        """Undo a running operation, or wait for its end, where a person asks for another one.

        One that is still running after ``timeout_s`` has the person's refused, as beside any other.
        """
        running = self._running()
        if running is None:
            return
        if running.allows(OperationEvent.CANCEL):
            self._runner.cancel(running.operation_id, "a person asked for another number")
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                async for _ in self._book.watch(running.operation_id):
                    continue

    def _running(self) -> Operation | None:
        running = self._book.running
        return None if running is None or running.origin is Origin.PERSON else running
