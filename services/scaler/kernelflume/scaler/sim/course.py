"""The course of one simulation: sessions begin, turns follow each other, the scaler looks."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kernelflume.core.errors import ConfigurationError
from kernelflume.scaler.sim.events import Event, EventKind
from kernelflume.scaler.sim.next_look import tick_at_or_after, tick_before

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.scaler.sim.cluster import Cluster
    from kernelflume.scaler.sim.sessions import Session
    from kernelflume.scaler.sim.shards import Residence
    from kernelflume.scaler.sim.workload import Demand
    from kernelflume.scaler.sim.workload_settings import Workload
    from kernelflume.scaler.sim.world import World


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
        self._free = demand.concurrency or 0
        """Turns that may still ask, where those are counted."""
        self._granted: set[tuple[int, int]] = set()
        """Session and turn of those that are counted before they ask."""
        self._ready: deque[tuple[Session, int]] = deque()
        """Turns whose client has returned, and which are too many."""
        self._look_s: float | None = None
        self._tick: int | None = None
        """Number of the scaler's next look; looks of other numbers that are due are void."""
        self._due: set[int] = set()
        self._looked = 0
        """Number of the latest look."""
        self._num_over = 0
        self._end_s = 0.0

    def run(self, look_s: float | None, progress: Callable[[float], None] | None) -> float:
        """Run to the end of the last session, or of the least duration; return when that was."""
        world, cluster = self._world, self._cluster
        cluster.start()
        self._begin()
        self._look_s = look_s
        self._arm(1)
        num_sessions = len(self._demand.sessions)
        least_s = self._workload.least_duration_s
        told = 0
        while self._num_over < num_sessions or (look_s is not None and world.queue.now_s < least_s):
            event = world.queue.pop()
            if event is None and self._num_over == num_sessions:
                break
            if event is None:
                raise ConfigurationError(
                    f"{num_sessions - self._num_over} sessions can never run: no event is due any more"
                )
            self._handle(event)
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
        for _ in range(concurrency):
            self._begin_next(0.0)

    def _begin_next(self, at_s: float) -> bool:
        """Let the next session begin, where arrivals are closed; return whether there was one."""
        if self._next >= len(self._demand.sessions):
            return False
        session = self._demand.sessions[self._next]
        self._next += 1
        if self._counts_turns:
            self._free -= 1
            self._granted.add((session.number, 0))
        self._ask(session, 0, at_s)
        return True

    @property
    def _counts_turns(self) -> bool:
        return self._demand.admits == "turns" and self._demand.concurrency is not None

    def _handle(self, event: Event) -> None:
        if event.kind is not EventKind.LOOK and self._look_s is not None:
            self._arm(tick_at_or_after(event.time_s, self._look_s))
        match event.kind:
            case EventKind.ENGINE:
                self._cluster.on_engine(event)
            case EventKind.CAPACITY:
                self._cluster.on_capacity(event)
            case EventKind.ARRIVAL if event.number < 0:
                self._cluster.on_return(event)
            case EventKind.ARRIVAL:
                self._on_arrival(self._demand.sessions[event.subject], event.number, event.time_s)
            case EventKind.LOOK if event.number != self._tick or self._look_s is None:
                self._due.discard(event.number)
            case EventKind.LOOK:
                self._due.discard(event.number)
                self._tick, self._looked = None, event.number
                quiet_until_s = self._cluster.on_look()
                self._arm(tick_before(quiet_until_s, self._look_s))

    def _arm(self, tick: int) -> None:
        """Let the scaler look at a tick of its grid, unless it does so before."""
        tick = max(tick, self._looked + 1)
        if self._look_s is None or (self._tick is not None and self._tick <= tick):
            return
        self._tick = tick
        if tick not in self._due:
            self._due.add(tick)
            self._world.queue.add(Event(tick * self._look_s, EventKind.LOOK, 0, tick))

    def _on_arrival(self, session: Session, turn_index: int, at_s: float) -> None:
        if self._counts_turns and (session.number, turn_index) not in self._granted:
            if self._free < 1:
                self._ready.append((session, turn_index))
                return
            self._free -= 1
        self._granted.discard((session.number, turn_index))
        self._cluster.ask(session, turn_index, at_s)

    def _ask(self, session: Session, turn_index: int, at_s: float) -> None:
        """Let a turn ask once its prompt is prefilled."""
        turn = session.turns[turn_index]
        missing = self._cluster.missing_tokens(session, turn_index)
        at_s += self._world.prefill_s(session, turn, turn.context_tokens, missing)
        self._world.queue.add(Event(at_s, EventKind.ARRIVAL, session.number, turn_index))

    def _turn_over(self, residence: Residence, at_s: float) -> bool:
        """Let the next turn ask, or the next session begin; return whether this session goes on."""
        session, following = residence.session, residence.turn_index + 1
        if following < len(session.turns):
            think_s = session.turns[following].think_s if self._workload.think else 0.0
            if think_s > 0 and self._counts_turns:
                self._give_on(at_s)
            elif self._counts_turns:
                self._granted.add((session.number, following))
            self._ask(session, following, at_s + think_s)
            return True
        self._num_over += 1
        self._end_s = max(self._end_s, at_s)
        if self._counts_turns:
            self._give_on(at_s)
        elif self._demand.admits == "batches" and self._num_over == self._next:
            for _ in range(self._demand.concurrency or 0):
                self._begin_next(at_s)
        elif self._demand.admits == "sessions" and self._demand.concurrency is not None:
            self._begin_next(at_s)
        return False

    def _give_on(self, at_s: float) -> None:
        """Let another turn have the place of one that is over: a client that returned, or a new session."""
        self._free += 1
        if self._ready:
            session, turn_index = self._ready.popleft()
            self._free -= 1
            self._granted.add((session.number, turn_index))
            self._world.queue.add(Event(at_s, EventKind.ARRIVAL, session.number, turn_index))
        else:
            self._begin_next(at_s)
