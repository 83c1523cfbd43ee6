"""What all strategies share: the queue of turns that wait, and the course of a turn through an engine."""

from __future__ import annotations

import bisect
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from kernelflume.scaler.sim.events import Event, EventKind
from kernelflume.scaler.sim.measures import Change, Sample
from kernelflume.scaler.sim.shards import Residence

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kernelflume.scaler.sim.engine import Engine
    from kernelflume.scaler.sim.sessions import Session
    from kernelflume.scaler.sim.shards import Shard
    from kernelflume.scaler.sim.world import World

HEADROOM = 0.01
"""Share of the capacity that must be left when a turn joins others, so that it does not push one out at once:
vLLM's watermark."""


class Cluster(ABC):
    """A strategy at work. One simulation drives it."""

    def __init__(self, world: World, on_turn_over: Callable[[Residence, float], bool]) -> None:
        """Begin empty.

        Args:
            world: clock and measures.
            on_turn_over: told each turn that ended and when; returns whether its session goes on.
        """
        self.world = world
        self.engines: dict[int, Engine] = {}
        self._on_turn_over = on_turn_over
        self._waiting: list[tuple[float, int, Residence]] = []
        self._homes: dict[int, Engine] = {}
        """Where a session's KV is, by its number."""
        self._returning: dict[int, Residence] = {}
        """Sessions that were put aside and are prefilled again."""

    # --- what a strategy decides ---------------------------------------------------------------------

    @abstractmethod
    def start(self) -> None:
        """Begin with the nodes of the start."""

    @abstractmethod
    def place(self, residence: Residence) -> tuple[Engine, Mapping[Shard, int], Shard] | None:
        """Return the engine, tokens to add on its shards, and the shard to append to; None without room."""

    @abstractmethod
    def make_room(self, engine: Engine) -> None:
        """See to it that every tail of an engine has room for one more token."""

    @abstractmethod
    def most_tokens(self) -> int:
        """Return the most tokens that one session can hold here."""

    @abstractmethod
    def on_capacity(self, event: Event) -> None:
        """Handle an event of kind CAPACITY."""

    @abstractmethod
    def on_look(self) -> float:
        """Look at the pool, as the scaler does from time to time.

        Returns:
            A time up to which looks would find nothing else to do, if nothing but growth happens.
        """

    @abstractmethod
    def num_nodes(self) -> int:
        """Return the nodes that are billed, for the timeline."""

    @abstractmethod
    def on_short(self) -> None:
        """Note that a turn waits for room."""

    @abstractmethod
    def on_released(self, engine: Engine) -> None:
        """Note that KV of an engine was dropped."""

    # --- events --------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        """The virtual clock."""
        return self.world.queue.now_s

    @property
    def num_waiting(self) -> int:
        """Turns that wait for room."""
        return len(self._waiting)

    def waiting_tokens(self) -> int:
        """Return the tokens that waiting turns lack."""
        return sum(max(0, entry[2].context_tokens - entry[2].held(0)) for entry in self._waiting)

    def missing_tokens(self, session: Session, turn_index: int) -> int:
        """Return the tokens of a turn's context that are not held."""
        context = session.turns[turn_index].context_tokens
        engine = self._homes.get(session.number)
        residence = engine.idle.get(session.number) if engine is not None else None
        kept = residence.held(0) if residence is not None and self.world.keeps_kv else 0
        return context - kept if kept <= context else context

    def ask(self, session: Session, turn_index: int, asked_at_s: float) -> None:
        """Let a turn be decoded as soon as there is room."""
        engine = self._homes.get(session.number)
        residence = engine.idle.get(session.number) if engine is not None else None
        if residence is None:
            residence = Residence(session, turn_index, asked_at_s)
        else:
            residence.turn_index, residence.asked_at_s, residence.decoded = turn_index, asked_at_s, 0
            if residence.held(0) > residence.turn.context_tokens and engine is not None:
                self._forget(engine, residence)  # the context was rewritten
        self._enqueue(residence)

    def on_engine(self, event: Event) -> None:
        """Handle an event of kind ENGINE."""
        engine = self.engines.get(event.subject)
        if engine is None or engine.version != event.number:
            return
        engine.finish_plan()
        self._end_turns(engine)
        self._admit()
        self.replan(engine)

    def reach(self, engine: Engine) -> None:
        """Bring an engine to the boundary at or after now, and end the turns that are over there."""
        engine.catch_up(self.now_s)
        self._end_turns(engine)

    def replan(self, engine: Engine) -> None:
        """After any change: see to room, plan anew and say when."""
        self._end_turns(engine)
        self.make_room(engine)
        at_s = engine.plan()
        if at_s is not None:
            self.world.queue.add(Event(at_s, EventKind.ENGINE, engine.number, engine.version))
        self.sample()

    def sample(self) -> None:
        """Note the present figures."""
        held, capacity, num_running, step_s = 0, 0, 0, 0.0
        for engine in self.engines.values():
            held += engine.held_tokens
            capacity += engine.capacity_tokens
            num_running += len(engine.running)
            step_s = max(step_s, engine.present_step_s)
        self.world.timeline.add(
            Sample(
                time_s=self.now_s,
                held_tokens=held,
                capacity_tokens=capacity,
                num_nodes=self.num_nodes(),
                num_running=num_running,
                num_waiting=len(self._waiting),
                step_s=step_s,
            )
        )

    def changed(self, reason: str) -> None:
        """Note a scale event."""
        self.world.timeline.change(Change(self.now_s, self.num_nodes(), reason))

    # --- the course of a turn ------------------------------------------------------------------------

    def _enqueue(self, residence: Residence) -> None:
        if residence.session.peak_tokens > self.most_tokens():
            self._refuse(residence)
            return
        bisect.insort(self._waiting, (residence.asked_at_s, residence.number, residence))
        self._admit()
        if any(entry[2] is residence for entry in self._waiting):
            self.world.num_waits += 1
            self.on_short()

    def _admit(self) -> None:
        """Let waiting turns run, first come first served: who has no room holds up those behind."""
        touched: dict[int, Engine] = {}
        while self._waiting:
            residence = self._waiting[0][2]
            home = self._homes.get(residence.number)
            if home is not None:
                self.reach(home)
            moving_s = self.moving_s(residence)
            if moving_s:
                del self._waiting[0]
                self._come_back(residence, moving_s)
                continue
            placed = self.place(residence)
            if placed is None:
                break
            del self._waiting[0]
            engine, added, tail = placed
            engine.join(residence, added, tail)
            self._homes[residence.number] = engine
            touched[engine.number] = engine
        for engine in touched.values():
            self.replan(engine)

    def moving_s(self, residence: Residence) -> float:  # noqa: ARG002 - for those that move sessions
        """Return how long a waiting turn's KV moves before it can be placed; it has left its place then."""
        return 0.0

    def put_aside(self, engine: Engine, residence: Residence) -> None:
        """Let a running session give way: its KV is dropped, and it comes back once it is prefilled again."""
        engine.put_aside(residence)
        self._homes.pop(residence.number, None)
        self.world.num_put_aside += 1
        self.world.recomputed_tokens += residence.context_tokens
        context = residence.context_tokens
        seconds = self.world.prefill_s(residence.session, residence.turn, context, context)
        self._come_back(residence, seconds)

    def evict_idle(self, engine: Engine, *, sparing: int, on: Shard | None = None) -> bool:
        """Drop the KV of the session that has been idle longest; return whether there was one.

        Args:
            engine: where.
            sparing: number of the session that is not to be dropped.
            on: only sessions that hold something on this shard.
        """
        for residence in engine.idle.values():
            if residence.number != sparing and (on is None or residence.parts.get(on)):
                self._forget(engine, residence)
                return True
        return False

    def _come_back(self, residence: Residence, delay_s: float) -> None:
        residence.num_returns += 1
        number = -residence.num_returns  # tells it from the session's own turns
        self._returning[residence.number] = residence
        self.world.queue.add(Event(self.now_s + delay_s, EventKind.ARRIVAL, residence.number, number))

    def on_return(self, event: Event) -> None:
        """Handle an event of kind ARRIVAL of a session that was put aside."""
        self._enqueue(self._returning.pop(event.subject))

    def _forget(self, engine: Engine, residence: Residence) -> None:
        engine.drop(residence)
        self._homes.pop(residence.number, None)
        self.on_released(engine)

    def _refuse(self, residence: Residence) -> None:
        remaining = residence.session.turns[residence.turn_index :]
        self.world.refused_tokens += sum(turn.output_tokens for turn in remaining) - residence.decoded
        engine = self._homes.get(residence.number)
        if engine is not None:
            self._forget(engine, residence)
        residence.turn_index = len(residence.session.turns) - 1
        self._on_turn_over(residence, self.now_s)

    def _end_turns(self, engine: Engine) -> None:
        for residence in engine.finished():
            turn = residence.turn
            seconds = (engine.clock_s - residence.asked_at_s) / turn.output_tokens
            self.world.turns.add(seconds, turn.output_tokens)
            self.world.num_turns += 1
            if self.world.cache is not None:
                self.world.cache.store(residence.session, turn)
            if seconds <= self.world.slo_s:
                self.world.num_tokens_within += turn.output_tokens
            residence.idle_since_s = engine.clock_s
            goes_on = self._on_turn_over(residence, engine.clock_s)
            if not (goes_on and self.world.keeps_kv):
                self._forget(engine, residence)
