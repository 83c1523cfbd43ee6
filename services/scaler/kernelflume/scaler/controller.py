"""Executes what the policy decides at each look at the pool, and what people ask for."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import secrets
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kernelflume.core.errors import (
    ConflictError,
    InvalidRequestError,
    LifecycleError,
    UnavailableError,
)
from kernelflume.core.routing import NodeEvent, NodeState
from kernelflume.scaler.observe import observe
from kernelflume.scaler.operation import Operation, OperationEvent, Origin, Result
from kernelflume.scaler.policy import (
    PolicyState,
    after_operation,
    decide,
    is_automatic,
)
from kernelflume.scaler.refinement import Refinement, refine
from kernelflume.scaler.runner import OperationRunner
from kernelflume.scaler.sizing import after_change
from kernelflume.scaler.upkeep import Upkeep

if TYPE_CHECKING:
    from kernelflume.core.geometry import KvGeometry
    from kernelflume.scaler.actors import Actors
    from kernelflume.scaler.book import OperationBook
    from kernelflume.scaler.decision_log import DecisionLog
    from kernelflume.scaler.metrics import ScalerMetrics
    from kernelflume.scaler.observe import Observation
    from kernelflume.scaler.policy import Decision, PolicySettings
    from kernelflume.scaler.runner import OnEnd
    from kernelflume.scaler.scaling_policy import ScalingPolicy
    from kernelflume.scaler.sizing import Sizing

logger = logging.getLogger(__name__)

_HELD_NUMBER = "held_attention_nodes"
"""Setting in the store: the number of nodes that a person asked for, while it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Defaults and intervals of the controller."""

    policy: PolicySettings
    """Its ``scaling`` and ``profile`` are only those at the start."""
    initial_target: int | None
    """Active nodes wanted at the start; None has as many as the table says."""
    operation_deadline_s: float
    """For operations that bring none, unless the policy has one."""
    look_interval_s: float
    """Longest time between two looks at the pool."""
    geometry: KvGeometry | None = None
    """Of the model: with it a profile is begun from what the nodes measure, where no file gives one."""


class Controller:
    """Owner of the policy's state. One event loop; ``run`` and the requests take turns on the table."""

    def __init__(
        self,
        actors: Actors,
        book: OperationBook,
        metrics: ScalerMetrics,
        decisions: DecisionLog,
        settings: ControllerSettings,
    ) -> None:
        self._actors = actors
        self._book = book
        self._metrics = metrics
        self.decisions = decisions
        self.sizing: Sizing | None = None
        """The newest sizing decision; None while the number of nodes is a person's to choose."""
        self._settings = settings
        self._policy = settings.policy
        self._refinement = Refinement(profile=settings.policy.profile)
        self._runner = OperationRunner(actors, book, metrics)
        self._policy_state: PolicyState | None = None
        self._beginning = asyncio.Lock()
        self._wake = asyncio.Event()
        self._kept_number = ""
        self._upkeep = Upkeep(actors, book, metrics, self._wake.set)

    @property
    def target(self) -> int | None:
        """Active attention nodes wanted; None when nobody asked for a number."""
        return self._policy_state.target if self._policy_state is not None else self._settings.initial_target

    @property
    def scaling(self) -> ScalingPolicy:
        """The operator's settings in force."""
        return self._policy.scaling

    @property
    def _launch_timeout_s(self) -> float:
        return self.scaling.provider.launch_timeout_s or self._settings.operation_deadline_s

    @property
    def is_automatic(self) -> bool:
        """True while the number of nodes is the policy's to choose."""
        state = self._policy_state or PolicyState()
        return is_automatic(state, self._policy, now_s=self._actors.clock.now())

    def set_scaling(self, scaling: ScalingPolicy) -> None:
        """Use other settings from the next look on."""
        self._policy = replace(self._policy, scaling=scaling)
        self._wake.set()

    def pause(self) -> None:
        """Leave the number of nodes as it is wanted now, until ``resume`` or a manual hold's end.

        Raises:
            UnavailableError: the routing table has not been seen yet.
        """
        state = self._seen_state()
        self._policy_state = replace(state, manual_since_s=self._actors.clock.now())

    def resume(self) -> None:
        """Let the policy choose the number of nodes again, where the settings are automatic.

        Raises:
            LifecycleError: the settings are not automatic.
        """
        if not self.scaling.automatic:
            raise LifecycleError("the scaling policy is not automatic: set `automatic: true` first")
        self._policy_state = replace(self._seen_state(), manual_since_s=None)
        self._wake.set()

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
        self._refine_profile(observation)
        state = self._policy_state or await self._first_state(observation)
        decision, self._policy_state = decide(observation, state, self._policy)
        self.sizing = decision.sized.sizing if decision.sized is not None else None
        if decision.sized is not None:
            self._metrics.sized(decision.sized.sizing)
            self.decisions.note(decision.sized, self._policy)
        if decision.removals:
            await self._upkeep.remove(decision.removals)
        if decision.resumed:
            await self._upkeep.resume(decision.resumed)
        for weight_node in decision.forgotten_weight_nodes:
            logger.warning("weight node %s is gone: its routes are dropped", weight_node)
            await actors.store.drop_weight_node(weight_node)
        await self._keep_number(self._policy_state)
        if decision.thresholds:
            await self._upkeep.set_thresholds(decision.thresholds)
        if decision.publishes:
            self._runner.publish()
        if decision.cancels:
            self._cancel_own(decision)
        if decision.scale_to is not None:
            await self._begin_own(decision, decision.scale_to)

    def _refine_profile(self, observation: Observation) -> None:
        had_one = self._refinement.profile is not None
        self._refinement = refine(
            self._refinement,
            observation.weights,
            observation.attention.values(),
            self._settings.geometry,
        )
        profile = self._refinement.profile
        if profile is None:
            return
        if not had_one:
            logger.info(
                "a performance profile was begun from what the nodes measured: %s",
                json.dumps(profile.to_dict()),
            )
        self._policy = replace(self._policy, profile=profile)
        self._metrics.profile_refined(profile)

    async def _first_state(self, observation: Observation) -> PolicyState:
        """Return what the policy begins with: a person's number outlives the scaler that was told it."""
        state = PolicyState(target=self._first_target(observation))
        kept = await self._actors.store.read_setting(_HELD_NUMBER)
        if kept and self.scaling.automatic:
            logger.info("a person's number holds: %s attention nodes", kept)
            state = replace(state, target=int(kept), manual_since_s=observation.now_s)
        self._kept_number = kept or ""
        return state

    async def _keep_number(self, state: PolicyState) -> None:
        """Note a person's number in the store when it changes; an empty text stands for none."""
        held = "" if state.manual_since_s is None or state.target is None else str(state.target)
        if held != self._kept_number:
            await self._actors.store.write_setting(
                _HELD_NUMBER, held, fencing_token=self._actors.table.fencing_token
            )
            self._kept_number = held

    def _first_target(self, observation: Observation) -> int | None:
        if self._settings.initial_target is not None or self._actors.provider.adopts:
            return self._settings.initial_target
        # The nodes of a scaler that crashed ended with it: have as many again.
        num_staying = len(observation.snapshot.nodes) - observation.num_in_state(NodeState.RETIRED)
        return max(self.scaling.minimum_nodes, num_staying)

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
        _check(operation_id, deadline_s)
        minimum, maximum = self.scaling.minimum_nodes, self.scaling.most_nodes
        if not minimum <= target <= maximum:
            raise InvalidRequestError(
                f"attention_nodes must be from {minimum} to {maximum}, not {target}",
                parameter="attention_nodes",
            )
        async with self._beginning:
            await self._have_policy_give_way(operation_id)
            repeated = self._book.repeated(operation_id, target)
            if repeated is not None:
                return repeated
            return await self._begin_for_person(
                operation_id,
                target,
                deadline_s=deadline_s,
                deadline_covers_drain=deadline_covers_drain,
            )

    async def drain(
        self,
        operation_id: str,
        node_ids: tuple[str, ...],
        *,
        deadline_s: float,
        deadline_covers_drain: bool,
    ) -> Operation:
        """Ask for the removal of these nodes; otherwise like ``set_target``.

        Raises:
            InvalidRequestError: an argument is out of bounds, or fewer nodes than the minimum would be left.
            NotFoundError: a node is not in the routing table.
            LifecycleError: a node is not active, or another operation is running.
            AlreadyExistsError: the id belongs to an operation on other nodes.
            UnavailableError: the store cannot be reached.
        """
        _check(operation_id, deadline_s)
        if not node_ids or len(set(node_ids)) < len(node_ids):
            raise InvalidRequestError("node_ids must name nodes, each once", parameter="node_ids")
        async with self._beginning:
            await self._have_policy_give_way(operation_id)
            repeated = self._book.repeated_on(operation_id, node_ids)
            if repeated is not None:
                return repeated
            snapshot = await self._actors.table.read()
            snapshot.with_event(NodeEvent.DRAIN, *node_ids)  # raises where that is not possible
            target = len(snapshot.in_state(NodeState.ACTIVE)) - len(node_ids)
            if target < self.scaling.minimum_nodes:
                raise InvalidRequestError(
                    f"{target} active nodes would be left, fewer than the minimum of "
                    f"{self.scaling.minimum_nodes}",
                    parameter="node_ids",
                )
            return await self._begin_for_person(
                operation_id,
                target,
                deadline_s=deadline_s,
                deadline_covers_drain=deadline_covers_drain,
                victims=node_ids,
            )

    def cancel(self, operation_id: str) -> Operation:
        """Stop an operation and undo what it did; see ``OperationRunner.cancel``.

        Where it was the policy's own, automatic scaling is paused: it would begin the same again.
        """
        operation = self._runner.cancel(operation_id)
        if operation.origin is Origin.POLICY and self._policy_state is not None:
            self.pause()
        return operation

    async def close(self) -> None:
        """Stop acting. Nodes and table stay as they are."""
        await self._runner.close()
        await self._upkeep.close()

    async def _begin_for_person(
        self,
        operation_id: str,
        target: int,
        *,
        deadline_s: float,
        deadline_covers_drain: bool,
        victims: tuple[str, ...] = (),
    ) -> Operation:
        previous = self._seen_state()

        def on_end(operation: Operation, overtaken: bool) -> None:
            # Rolled back: what was wanted before is wanted again, unless a loss made it pointless.
            if operation.rolled_back and not overtaken:
                self._want(previous.target)
                self._policy_state = replace(self._seen_state(), manual_since_s=previous.manual_since_s)
            self._wake.set()

        operation = await self._begin(
            operation_id,
            target,
            deadline_s=deadline_s or self._launch_timeout_s,
            deadline_covers_drain=deadline_covers_drain,
            on_end=on_end,
            victims=victims,
        )
        self._want(target)
        self.pause()
        return operation

    async def _begin(
        self,
        operation_id: str,
        target: int,
        *,
        deadline_s: float,
        deadline_covers_drain: bool,
        on_end: OnEnd,
        origin: Origin = Origin.PERSON,
        cause: str = "",
        is_held: bool = False,
        victims: tuple[str, ...] = (),
    ) -> Operation:
        snapshot = await self._actors.table.read()
        operation = Operation.begin(
            operation_id,
            target=target,
            initial=len(snapshot.in_state(NodeState.ACTIVE)),
            now_s=self._actors.clock.now(),
            origin=origin,
            cause=cause,
            is_held=is_held,
        ).with_nodes(*victims)
        return self._runner.begin(
            operation, deadline_s=deadline_s, deadline_covers_drain=deadline_covers_drain, on_end=on_end
        )

    async def _begin_own(self, decision: Decision, scale_to: int) -> None:
        """Start an operation of the policy's own, unless a person's has begun since it was decided."""

        def on_end(operation: Operation, overtaken: bool) -> None:
            now_s = self._actors.clock.now()
            state = self._policy_state or PolicyState()
            grew = operation.result is Result.SUCCEEDED and operation.target > operation.initial
            sizing = after_change(state.sizing, now_s=now_s, prewarm_s=operation.prewarm_s if grew else None)
            is_given_up = self.is_automatic or operation.result is Result.CANCELLED
            if operation.rolled_back and not overtaken and is_given_up:
                # The next look decides anew; what a person stopped is not tried again.
                state = replace(state, target=operation.initial)
            self._policy_state = after_operation(
                replace(state, sizing=sizing),
                self._policy,
                succeeded=operation.result is not Result.FAILED,
                now_s=now_s,
            )
            self._wake.set()

        async with self._beginning:
            if self._book.running is None:
                await self._begin(
                    f"{decision.scale_reason}-{secrets.token_hex(4)}",
                    scale_to,
                    deadline_s=self._launch_timeout_s,
                    deadline_covers_drain=False,
                    on_end=on_end,
                    origin=Origin.POLICY,
                    cause=str(decision.scale_reason),
                    is_held=decision.is_held,
                )

    def _cancel_own(self, decision: Decision) -> None:
        """Undo an operation of the policy's own that is not needed any more, if it still can be."""
        running = self._book.running
        reason = decision.sized.sizing.reason if decision.sized is not None else ""
        if running is None or running.origin is Origin.PERSON:
            return
        if running.allows(OperationEvent.CANCEL):
            self._runner.cancel(running.operation_id, f"the policy gave it up: {reason}")

    async def _have_policy_give_way(self, operation_id: str) -> None:
        """Undo a running operation of the policy's own where a person asks for another one."""
        running = self._book.running
        if running is None or running.origin is Origin.PERSON or running.operation_id == operation_id:
            return
        if running.allows(OperationEvent.CANCEL):
            self._runner.cancel(running.operation_id, "a person asked for another number")
        with suppress(TimeoutError):  # still running: the request is refused as beside any other operation
            async with asyncio.timeout(self._launch_timeout_s):
                async for _ in self._book.watch(running.operation_id):
                    continue

    def _seen_state(self) -> PolicyState:
        if self._policy_state is None:
            raise UnavailableError("the scaler has not seen the routing table yet: try again")
        return self._policy_state

    def _want(self, target: int | None) -> None:
        state = self._policy_state or PolicyState()
        self._policy_state = replace(state, target=target, num_failures=0, retry_at_s=0.0)


def _check(operation_id: str, deadline_s: float) -> None:
    if not operation_id:
        raise InvalidRequestError("operation_id must not be empty", parameter="operation_id")
    if deadline_s < 0 or not math.isfinite(deadline_s):
        raise InvalidRequestError(
            f"deadline_seconds must be 0 or a positive number, not {deadline_s}",
            parameter="deadline_seconds",
        )
