"""Executes what the policy decides at each look at the pool, and what people ask for."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kernelflume.core.errors import (
    ConflictError,
    InvalidRequestError,
    KernelFlumeError,
    UnavailableError,
)
from kernelflume.core.routing import NodeEvent, NodeState
from kernelflume.runtime.clock import Deadline
from kernelflume.scaler.observe import observe
from kernelflume.scaler.operation import Operation, Result
from kernelflume.scaler.policy import PolicyState, RemovalReason, after_operation, decide, is_owned
from kernelflume.scaler.runner import OperationRunner

if TYPE_CHECKING:
    from kernelflume.core.routing import AttentionNodeEntry, RoutingSnapshot
    from kernelflume.scaler.actors import Actors
    from kernelflume.scaler.book import OperationBook
    from kernelflume.scaler.metrics import ScalerMetrics
    from kernelflume.scaler.observe import Observation
    from kernelflume.scaler.policy import Decision, PolicySettings, Removal
    from kernelflume.scaler.runner import OnEnd

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Defaults and intervals of the controller."""

    policy: PolicySettings
    initial_target: int | None
    """Active nodes wanted at the start; None has as many as the table says."""
    operation_deadline_s: float
    """For operations that bring none."""
    look_interval_s: float
    """Longest time between two looks at the pool."""


class Controller:
    """Owner of the policy's state. One event loop; ``run`` and the requests take turns on the table."""

    def __init__(
        self, actors: Actors, book: OperationBook, metrics: ScalerMetrics, settings: ControllerSettings
    ) -> None:
        self._actors = actors
        self._book = book
        self._metrics = metrics
        self._settings = settings
        self._runner = OperationRunner(actors, book, metrics)
        self._policy_state: PolicyState | None = None
        self._beginning = asyncio.Lock()
        self._wake = asyncio.Event()
        self._cleanups: set[asyncio.Task[None]] = set()

    @property
    def target(self) -> int | None:
        """Active attention nodes wanted; None when nobody asked for a number."""
        return self._policy_state.target if self._policy_state is not None else self._settings.initial_target

    async def run(self) -> None:
        """Look at the pool and act, until cancelled. No fault ends it: the nodes may be its own children."""
        last_fault = ""
        while True:
            self._wake.clear()
            try:
                await self.look()
                last_fault = ""
            except Exception as error:
                if str(error) != last_fault:
                    expected = isinstance(error, UnavailableError | ConflictError)
                    logger.warning(
                        "the pool is left as it is: %s", error, exc_info=None if expected else error
                    )
                last_fault = str(error)
                if self._policy_state is not None:
                    # While the store is away no lease can be renewed: every grace begins anew.
                    self._policy_state = replace(self._policy_state, missing_since_s={})
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.look_interval_s):
                    await self._wake.wait()

    async def look(self) -> None:
        """Observe once, decide, and act.

        Raises:
            UnavailableError: the store cannot be reached.
            ConflictError: the table was changed by another one, or another scaler leads.
        """
        actors = self._actors
        observation = await observe(actors.store, actors.table, actors.provider, self._book, actors.clock)
        self._metrics.table_seen(observation.snapshot)
        state = self._policy_state or PolicyState(target=self._first_target(observation))
        decision, self._policy_state = decide(observation, state, self._settings.policy)
        if decision.removals:
            await self._remove(decision.removals)
        if decision.resumed:
            await self._resume(decision.resumed)
        for weight_node in decision.forgotten_weight_nodes:
            logger.warning("weight node %s is gone: its routes are dropped", weight_node)
            await actors.store.drop_weight_node(weight_node)
        if decision.scale_to is not None:
            await self._begin_own(decision, decision.scale_to)

    def _first_target(self, observation: Observation) -> int | None:
        if self._settings.initial_target is not None or self._actors.provider.adopts:
            return self._settings.initial_target
        # The nodes of a scaler that crashed ended with it: have as many again.
        num_staying = len(observation.snapshot.nodes) - observation.num_in_state(NodeState.RETIRED)
        return max(self._settings.policy.minimum, num_staying)

    async def set_target(
        self, operation_id: str, target: int, *, deadline_s: float, deadline_covers_drain: bool
    ) -> Operation:
        """Ask for an absolute number of active nodes; returns at once with the operation that sees to it.

        Args:
            operation_id: chosen by the caller; the same id again returns the same operation.
            target: active nodes wanted.
            deadline_s: bound of launching and prewarming; 0 takes the default.
            deadline_covers_drain: bound draining too, which else lasts as long as the sequences do.

        Raises:
            InvalidRequestError: an argument is out of bounds.
            AlreadyExistsError: the id belongs to an operation with another target.
            LifecycleError: another operation is running.
            UnavailableError: the store cannot be reached.
        """
        policy = self._settings.policy
        if not operation_id:
            raise InvalidRequestError("operation_id must not be empty", parameter="operation_id")
        if not policy.minimum <= target <= policy.maximum:
            raise InvalidRequestError(
                f"attention_nodes must be from {policy.minimum} to {policy.maximum}, not {target}",
                parameter="attention_nodes",
            )
        if deadline_s < 0 or not math.isfinite(deadline_s):
            raise InvalidRequestError(
                f"deadline_seconds must be 0 or a positive number, not {deadline_s}",
                parameter="deadline_seconds",
            )
        async with self._beginning:
            repeated = self._book.repeated(operation_id, target)
            if repeated is not None:
                return repeated
            if self._policy_state is None:
                raise UnavailableError("the scaler has not seen the routing table yet: try again")
            previous_target = self._policy_state.target

            def on_end(operation: Operation, overtaken: bool) -> None:
                # Rolled back: what was wanted before is wanted again, unless a loss made it pointless.
                if operation.rolled_back and not overtaken:
                    self._want(previous_target)
                self._wake.set()

            operation = await self._begin(
                operation_id,
                target,
                deadline_s=deadline_s or self._settings.operation_deadline_s,
                deadline_covers_drain=deadline_covers_drain,
                on_end=on_end,
            )
            self._want(target)
            return operation

    def cancel(self, operation_id: str) -> Operation:
        """Stop an operation and undo what it did; see ``OperationRunner.cancel``."""
        return self._runner.cancel(operation_id)

    async def close(self) -> None:
        """Stop acting. Nodes and table stay as they are."""
        await self._runner.close()
        for task in self._cleanups:
            task.cancel()
        await asyncio.gather(*self._cleanups, return_exceptions=True)

    async def _begin(
        self,
        operation_id: str,
        target: int,
        *,
        deadline_s: float,
        deadline_covers_drain: bool,
        on_end: OnEnd,
    ) -> Operation:
        snapshot = await self._actors.table.read()
        operation = Operation.begin(
            operation_id,
            target=target,
            initial=len(snapshot.in_state(NodeState.ACTIVE)),
            now_s=self._actors.clock.now(),
        )
        return self._runner.begin(
            operation, deadline_s=deadline_s, deadline_covers_drain=deadline_covers_drain, on_end=on_end
        )

    async def _begin_own(self, decision: Decision, scale_to: int) -> None:
        """Start an operation of the policy's own, unless a person's has begun since it was decided."""

        def on_end(operation: Operation, overtaken: bool) -> None:  # noqa: ARG001 - the callback's signature
            if operation.result is Result.CANCELLED:
                self._want(operation.initial)  # a person stopped the policy: it shall not try the same again
            if self._policy_state is not None:
                self._policy_state = after_operation(
                    self._policy_state,
                    self._settings.policy,
                    succeeded=operation.result is Result.SUCCEEDED,
                    now_s=self._actors.clock.now(),
                )
            self._wake.set()

        async with self._beginning:
            if self._book.running is None:
                await self._begin(
                    f"{decision.scale_reason}-{secrets.token_hex(4)}",
                    scale_to,
                    deadline_s=self._settings.operation_deadline_s,
                    deadline_covers_drain=False,
                    on_end=on_end,
                )

    def _want(self, target: int | None) -> None:
        state = self._policy_state or PolicyState()
        self._policy_state = replace(state, target=target, num_failures=0, retry_at_s=0.0)

    async def _resume(self, node_ids: tuple[str, ...]) -> None:
        logger.warning("nobody drains %s: resumed", ", ".join(node_ids))

        def resumed(snapshot: RoutingSnapshot) -> RoutingSnapshot | None:
            strays = [
                node.node_id
                for node in snapshot.in_state(NodeState.DRAINING)
                if node.node_id in node_ids and not is_owned(node, self._book.running)
            ]
            return snapshot.with_event(NodeEvent.RESUME, *strays) if strays else None

        await self._actors.table.edit(resumed)

    async def _remove(self, removals: tuple[Removal, ...]) -> None:
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
        self._wake.set()

    async def _end(self, entry: AttentionNodeEntry) -> None:
        actors = self._actors
        await actors.provider.terminate(entry.node_id, grace_s=actors.terminate_grace_s)
        try:
            await actors.weights.release([entry], Deadline(actors.clock, actors.release_timeout_s))
        except KernelFlumeError as error:
            logger.warning("after the loss of %s %s", entry.name, error)
