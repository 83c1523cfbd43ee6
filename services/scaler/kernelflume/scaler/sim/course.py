"""The course of one simulation: sessions begin, turns follow each other, the scaler looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelflume.core.errors import ConfigurationError
from kernelflume.scaler.sim.events import Event, EventKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.scaler.sim.cluster import Cluster, World
    from kernelflume.scaler.sim.config import Workload
    from kernelflume.scaler.sim.sessions import Session
    from kernelflume.scaler.sim.shards import Residence
    from kernelflume.scaler.sim.workload import Demand


class Course:
    """Drives one cluster from the first session to the end of the last."""

    def __init__(
        self,
        demand: Demand,
        workload: Workload,
        world: World,
        build: Callable[[World, Callable[[Residence, float], bool]], Cluster],
    ) -> None:
        """Build the cluster.

        Args:
            demand: the sessions.
            workload: how they behave.
            world: clock and measures.
            build: makes the cluster, which tells the function that it is given of each turn that ended.
        """
        self._demand = demand
        self._workload = workload
        self._world = world
        self._cluster = build(world, self._turn_over)
        self._next = 0
        """The first session that has not begun, where arrivals are closed."""
        self._num_over = 0
        self._end_s = 0.0

    def run(self, look_s: float | None, progress: Callable[[float], None] | None) -> float:
        """Run to the end of the last session, or of the least duration; return when that was."""
        world, cluster = self._world, self._cluster
        cluster.start()
        self._begin()
        if look_s is not None:
            world.queue.add(Event(look_s, EventKind.LOOK, 0))
        num_sessions = len(self._demand.sessions)
        least_s = self._workload.least_duration_s
        told = 0
        while self._num_over < num_sessions or (look_s is not None and world.queue.now_s < least_s):
            event = world.queue.pop()
            if event is None:
                raise ConfigurationError(
                    f"{num_sessions - self._num_over} sessions can never run: no event is due any more"
                )
            self._handle(event, look_s)
            if progress is not None and self._num_over > told:
                told = self._num_over
                progress(told / num_sessions)
        return max(self._end_s, least_s)

    def _begin(self) -> None:
        concurrency = self._demand.concurrency
        if concurrency is None:
            for session in self._demand.sessions:
                self._ask(session, 0, session.start_s)
            return
        for session in self._demand.sessions[:concurrency]:
            self._ask(session, 0, 0.0)
        self._next = concurrency

    def _handle(self, event: Event, look_s: float | None) -> None:
        match event.kind:
            case EventKind.ENGINE:
                self._cluster.on_engine(event)
            case EventKind.CAPACITY:
                self._cluster.on_capacity(event)
            case EventKind.ARRIVAL if event.number < 0:
                self._cluster.on_return(event)
            case EventKind.ARRIVAL:
                session = self._demand.sessions[event.subject]
                self._cluster.ask(session, event.number, event.time_s)
            case EventKind.LOOK:
                self._cluster.on_look()
                self._world.queue.add(Event(event.time_s + (look_s or 1.0), EventKind.LOOK, 0))

    def _ask(self, session: Session, turn_index: int, at_s: float) -> None:
        """Let a turn ask once its prompt is prefilled."""
        rate = self._world.prefill_tokens_per_s
        if rate:
            at_s += self._cluster.missing_tokens(session, turn_index) / rate
        self._world.queue.add(Event(at_s, EventKind.ARRIVAL, session.number, turn_index))

    def _turn_over(self, residence: Residence, at_s: float) -> bool:
        """Let the next turn ask, or the next session begin; return whether this session goes on."""
        session, following = residence.session, residence.turn_index + 1
        if following < len(session.turns):
            think_s = session.turns[following].think_s if self._workload.think else 0.0
            self._ask(session, following, at_s + think_s)
            return True
        self._num_over += 1
        self._end_s = max(self._end_s, at_s)
        if self._demand.concurrency is not None and self._next < len(self._demand.sessions):
            self._ask(self._demand.sessions[self._next], 0, at_s)
            self._next += 1
        return False
