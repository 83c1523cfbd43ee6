"""Executes what the policy decides at each look at the pool, and what people ask for."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kernelflume.core.errors import (
    ConflictError,
    DamagedTableError,
    InvalidRequestError,
    LifecycleError,
    NotFoundError,
    UnavailableError,
)
from kernelflume.core.routing import NodeState
from kernelflume.scaler.held_number import HeldNumber
from kernelflume.scaler.live_profile import KEEP_INTERVAL_S, LiveProfile
from kernelflume.scaler.observe import observe
from kernelflume.scaler.operation import Operation, Origin
from kernelflume.scaler.operation_records import OperationRecords
from kernelflume.scaler.own_operations import OwnOperations
from kernelflume.scaler.policy import PolicyState, after_own, decide, is_automatic
from kernelflume.scaler.requests import check_request, num_left_without
from kernelflume.scaler.runner import OperationRunner
from kernelflume.scaler.succession import Succession
from kernelflume.scaler.upkeep import Upkeep

if TYPE_CHECKING:
    from kernelflume.core.geometry import KvGeometry
    from kernelflume.scaler.actors import Actors
    from kernelflume.scaler.book import OperationBook
    from kernelflume.scaler.decision_log import DecisionLog
    from kernelflume.scaler.metrics import ScalerMetrics
    from kernelflume.scaler.observe import Observation
    from kernelflume.scaler.policy import PolicySettings
    from kernelflume.scaler.scaling_policy import ScalingPolicy
    from kernelflume.scaler.sizing import Sizing

logger = logging.getLogger(__name__)


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
    scaler: str
    """Node id of this scaler."""
    profile_digest: str = ""
    """Of the profile's file: what was learnt with another one is not used."""
    keep_profile_s: float = KEEP_INTERVAL_S
    """Shortest time between two writes of the refined profile."""
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
        self.is_table_readable = True
        """False while the routing table is damaged, which takes a person to mend."""
        self._settings = settings
        self._policy = settings.policy
        self._profile = LiveProfile(
            settings.policy.profile,
            actors.store,
            actors.table,
            actors.clock,
            file_digest=settings.profile_digest,
            geometry=settings.geometry,
            keep_interval_s=settings.keep_profile_s,
        )
        self._held = HeldNumber(actors.store, actors.table)
        self._records = OperationRecords(actors.store, actors.table, actors.clock, scaler=settings.scaler)
        self._runner = OperationRunner(actors, book, metrics, self._records)
        self._own = OwnOperations(actors, book, self._runner)
        self._policy_state: PolicyState | None = None
        self._beginning = asyncio.Lock()
        self._wake = asyncio.Event()
        self._upkeep = Upkeep(actors, book, metrics, self._wake.set)
        self._succession = Succession(actors, book, self._records, self._held)

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
            raise LifecycleError(
                "the scaling policy is not automatic: set `automatic: true` first "
                "(kernelflume policy set FILE, or the scaler's policy file)"
            )
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
                self.is_table_readable = True
            except Exception as error:
                if str(error) != last_fault:
                    expected = isinstance(error, UnavailableError | ConflictError)
                    logger.warning(
                        "the pool is left as it is: %s", error, exc_info=None if expected else error
                    )
                last_fault = str(error)
                self.is_table_readable = not isinstance(error, DamagedTableError)
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
        state = self._policy_state or await self._first_state(observation)
        profile = self._profile.refine(observation)
        if profile is not None:
            self._policy = replace(self._policy, profile=profile)
            self._metrics.profile_refined(profile)
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
        await self._held.follow(self._policy_state)
        await self._profile.keep()
        if decision.thresholds:
            await self._upkeep.set_thresholds(decision.thresholds)
        if decision.publishes:
            self._runner.publish()
        if decision.cancels:
            self._own.cancel(decision)
        if decision.scale_to is not None:
            async with self._beginning:
                await self._own.begin(
                    decision,
                    decision.scale_to,
                    deadline_s=self._launch_timeout_s,
                    held_before=self._held.text,
                    on_end=self._after_own,
                )

    async def _first_state(self, observation: Observation) -> PolicyState:
        """Return what the policy begins with, from what the scaler before this one left behind."""
        await self._profile.recall()
        rolled_back = await self._succession.take_over(observation)
        state = PolicyState(target=self._first_target(observation, rolled_back))
        if self._held.text and (self.scaling.automatic or _is_takeover(observation)):
            logger.info("a person's number holds: %s attention nodes", self._held.text)
            state = replace(state, target=int(self._held.text), manual_since_s=observation.now_s)
        return state

    def _first_target(self, observation: Observation, rolled_back: Operation | None) -> int | None:
        if self._settings.initial_target is not None or self._actors.provider.adopts:
            return self._settings.initial_target
        if rolled_back is not None:
            return rolled_back.initial
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
        check_request(operation_id, deadline_s)
        if fault := self.scaling.fault_of(target):
            raise InvalidRequestError(f"attention_nodes {fault}", parameter="attention_nodes")
        async with self._beginning:
            await self._known(operation_id)  # the book has it from then on
            known = self._book.known(operation_id, target)
            if known is not None:
                return known
            await self._own.give_way(timeout_s=self._launch_timeout_s)
            self._book.check_free()
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
        check_request(operation_id, deadline_s)
        if not node_ids or len(set(node_ids)) < len(node_ids):
            raise InvalidRequestError("node_ids must name nodes, each once", parameter="node_ids")
        async with self._beginning:
            await self._known(operation_id)  # the book has it from then on
            known = self._book.known_on(operation_id, node_ids)
            if known is not None:
                return known
            self._book.check_free(beside=Origin.POLICY)
            await self._num_left_without(node_ids)  # the policy does not give way to what cannot be
            await self._own.give_way(timeout_s=self._launch_timeout_s)
            self._book.check_free()
            target = await self._num_left_without(node_ids)
            return await self._begin_for_person(
                operation_id,
                target,
                deadline_s=deadline_s,
                deadline_covers_drain=deadline_covers_drain,
                victims=node_ids,
            )

    async def find(self, operation_id: str) -> Operation:
        """Return an operation of this scaler, or of one before it; the book knows it from then on.

        Raises:
            NotFoundError: there is none of that id, or it ended too long ago.
            UnavailableError: the store cannot be reached.
        """
        operation = await self._known(operation_id)
        if operation is None:
            raise NotFoundError(f"there is no operation {operation_id!r}")
        return operation

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

    async def _num_left_without(self, node_ids: tuple[str, ...]) -> int:
        snapshot = await self._actors.table.read()
        return num_left_without(
            snapshot, node_ids, running=self._book.running, minimum=self.scaling.minimum_nodes
        )

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

        snapshot = await self._actors.table.read()
        operation = Operation.begin(
            operation_id,
            target=target,
            initial=len(snapshot.in_state(NodeState.ACTIVE)),
            now_s=self._actors.clock.now(),
        ).with_nodes(*victims)
        operation = await self._runner.begin(
            operation,
            deadline_s=deadline_s or self._launch_timeout_s,
            deadline_covers_drain=deadline_covers_drain,
            held_before=self._held.text,
            on_end=on_end,
        )
        self._want(target)
        self.pause()
        return operation

    def _after_own(self, operation: Operation, overtaken: bool) -> None:
        self._policy_state = after_own(
            self._policy_state or PolicyState(),
            self._policy,
            operation,
            overtaken=overtaken,
            now_s=self._actors.clock.now(),
        )
        self._wake.set()

    async def _known(self, operation_id: str) -> Operation | None:
        if self._book.find(operation_id) is None:
            self._seen_state()  # what the scaler before this one left is put in order first
        return await self._succession.find(operation_id)

    def _seen_state(self) -> PolicyState:
        if self._policy_state is None:
            raise UnavailableError("the scaler has not seen the routing table yet: try again")
        return self._policy_state

    def _want(self, target: int | None) -> None:
        state = self._policy_state or PolicyState()
        self._policy_state = replace(state, target=target, num_failures=0, retry_at_s=0.0)


def _is_takeover(observation: Observation) -> bool:
    """Tell whether nodes of another scaler serve on: the number at the start was that scaler's to see to."""
    return any(map(observation.is_alive, observation.snapshot.in_state(NodeState.ACTIVE)))
