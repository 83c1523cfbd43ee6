"""Full instances: a fixed pool of them, or one that grows and shrinks by whole instances."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kernelflume.scaler.sim.cluster import HEADROOM, Cluster
from kernelflume.scaler.sim.events import Event, EventKind
from kernelflume.scaler.sim.instance_fleet import InstanceFleet
from kernelflume.scaler.sizing import FOREVER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kernelflume.scaler.sim.engine import Engine
    from kernelflume.scaler.sim.instance_kind import InstanceKind, InstanceRules
    from kernelflume.scaler.sim.shards import Residence, Shard
    from kernelflume.scaler.sim.strategy_settings import Instances
    from kernelflume.scaler.sim.world import World


class InstanceCluster(Cluster):
    """Turns go to one instance each; KV stays in it."""

    def __init__(
        self,
        world: World,
        on_turn_over: Callable[[Residence, float], bool],
        kind: InstanceKind,
        rules: InstanceRules,
    ) -> None:
        """Begin with no instance."""
        super().__init__(world, on_turn_over)
        self._kind = kind
        self._rules = rules
        self._fleet = InstanceFleet(world, self.engines, kind)
        self._spare_since_s: float | None = None
        """Since when the others would hold what the emptiest instance does."""
        self._idle_marks: dict[int, int] = {}
        """Engine number -> the newest check of its idleness."""

    def start(self) -> None:
        """Begin with the instances of the start, which are ready."""
        for _ in range(self._rules.num_instances):
            self._fleet.begin(self._fleet.launch(is_billed=True))
        self.sample()

    def most_tokens(self) -> int:
        """Return an instance's capacity."""
        return self._kind.capacity_tokens

    def num_nodes(self) -> int:
        """Return the ranks that are billed."""
        return self._fleet.num_billed * self._kind.num_ranks

    def place(self, residence: Residence) -> tuple[Engine, Mapping[Shard, int], Shard] | None:
        """Choose an instance with room: the one that keeps its KV, else by the rule of placement."""
        home = self._homes.get(residence.number)
        if home is not None and self._can_stay(home, residence):
            return self._on(home, residence)
        sign = -1 if self._rules.placement == "emptiest" else 1
        order = sorted(
            (engine for engine in self._fleet.taking() if engine is not home),
            key=lambda engine: (sign * engine.shards[0].room(engine.step), engine.number),
        )
        for fits in (self._fits, self._fits_without_idle):
            for engine in order:
                self.reach(engine)
                if not fits(engine, residence):
                    continue
                if home is not None:
                    self.world.num_moved += 1
                    self._forget(home, residence)
                return self._on(engine, residence)
        return None

    def moving_s(self, residence: Residence) -> float:
        """Let KV that cannot stay where it is move to where there is room, where that takes time."""
        rate, home = self._move_bytes_per_s(), self._homes.get(residence.number)
        if rate is None or home is None or self._can_stay(home, residence):
            return 0.0
        others = [engine for engine in self._fleet.taking() if engine is not home]
        for engine in others:
            self.reach(engine)
        if not any(self._fits(engine, residence) for engine in others):
            return 0.0
        seconds = residence.held(0) * self._kind.token_bytes / rate
        self.world.num_moved += 1
        self._forget(home, residence)
        return seconds

    def make_room(self, engine: Engine) -> None:
        """Evict idle sessions, then move or put aside the newest, until every tail has room."""
        [shard] = engine.shards
        while len(shard.tails) > shard.room(engine.step):
            if not self.evict_idle(engine, sparing=-1):
                residence = engine.newest()
                if self._rules.migrates and self._move(engine, residence):
                    continue
                self.put_aside(engine, residence)

    def on_short(self) -> None:
        """Start instances for what waits."""
        rules = self._rules.elasticity
        if rules is None:
            return
        if self._fleet.leaving:
            # What was to end is needed again: that is faster than a start.
            self._fleet.leaving.discard(min(self._fleet.leaving))
            self.changed("resumed")
            self._admit()
            return
        wanted = math.ceil(self.waiting_tokens() / self._kind.capacity_tokens)
        self._start_more(max(1, wanted) - len(self._fleet.starting), "no_room")

    def on_capacity(self, event: Event) -> None:
        """An instance is ready, or has been empty for the time that it may be."""
        if event.subject in self._fleet.starting:
            self._fleet.begin(event.subject)
            self.changed("started")
            self._admit()
            self._mark_idle(event.subject)
            return
        engine = self.engines.get(event.subject)
        if engine is None or self._idle_marks.get(event.subject) != event.number:
            return
        self._stop_if_idle(engine)

    def on_look(self) -> float:
        """Start one more where KV or steps exceed what triggers it; let one leave that is not needed."""
        rules = self._rules.elasticity
        if rules is None or not rules.needs_looks:
            return FOREVER_S
        for engine in list(self.engines.values()):
            self.reach(engine)
        for number in sorted(self._fleet.leaving):
            self._stop_if_done(self.engines[number])
        capacity = sum(engine.capacity_tokens for engine in self._fleet.taking())
        held = sum(engine.held_tokens for engine in self.engines.values())
        slowest_s = max((engine.step_s() for engine in self.engines.values()), default=0.0)
        if not self._fleet.starting:
            if rules.trigger_utilisation is not None and held > rules.trigger_utilisation * capacity:
                self._start_more(1, "utilisation")
            elif rules.trigger_step_s is not None and slowest_s > rules.trigger_step_s:
                self._start_more(1, "step_time")
        has_left = rules.scale_in_utilisation is not None and self._let_leave(held, capacity, rules)
        if has_left or self._fleet.starting or slowest_s:
            return self.now_s
        # While nothing runs, only a wait that has begun can come to its end.
        return FOREVER_S if self._spare_since_s is None else self._spare_since_s + rules.scale_in_idle_s

    def _let_leave(self, held: int, capacity: int, rules: Instances) -> bool:
        """Let the emptiest instance leave once the others were enough for long; return whether it did."""
        left = capacity - self._kind.capacity_tokens
        spare = (
            len(self._fleet.taking()) > rules.minimum_instances
            and not self._fleet.starting
            and not self._waiting
        )
        if not spare or held > (rules.scale_in_utilisation or 1.0) * left:
            self._spare_since_s = None
            return False
        if self._spare_since_s is None:
            self._spare_since_s = self.now_s
        if self.now_s - self._spare_since_s < rules.scale_in_idle_s:
            return False
        self._spare_since_s = None
        emptiest = min(self._fleet.taking(), key=lambda engine: (engine.held_tokens, -engine.number))
        self._fleet.leaving.add(emptiest.number)
        self.changed("leaving")
        self._stop_if_done(emptiest)
        return True

    def on_released(self, engine: Engine) -> None:
        """Begin to count the time that an instance is empty; one that leaves ends at once."""
        if engine.number in self._fleet.leaving:
            self._stop_if_done(engine)
        elif engine.number in self.engines:
            self._mark_idle(engine.number)

    def _can_stay(self, home: Engine, residence: Residence) -> bool:
        stays = residence.number in home.idle and home.number not in self._fleet.leaving
        return stays and self._fits(home, residence)

    def _move_bytes_per_s(self) -> float | None:
        rules = self._rules.elasticity
        rate = rules.migration_gb_per_s if rules is not None else None
        return rate * 1e9 if rate is not None else None

    def _fits(self, engine: Engine, residence: Residence) -> bool:
        if self._rules.admission != "current":
            return self._has_unreserved(engine, residence, [*engine.running.values(), *engine.idle.values()])
        headroom = int(HEADROOM * engine.capacity_tokens) if engine.running else 1

        def lacks() -> bool:
            missing = residence.context_tokens - (residence.held(0) if engine is home else 0)
            return missing + headroom > engine.shards[0].room(engine.step)

        home = self._homes.get(residence.number)
        while lacks():
            if not self.evict_idle(engine, sparing=residence.number):
                return False
        return True

    def _fits_without_idle(self, engine: Engine, residence: Residence) -> bool:
        """Where no instance can be added, let what is kept free for idle sessions go, the longest idle first.

        Else those whose next turns wait behind this one, or may not ask before it is over, would hold it up
        for ever. By what sessions hold now (``_fits``) idle ones give way in any case.
        """
        rules = self._rules.elasticity
        if self._rules.admission == "current" or self._fleet.may_grow(
            rules.maximum_instances if rules else 0
        ):
            return False
        if not self._has_unreserved(engine, residence, engine.running.values()):
            return False
        while not self._fits(engine, residence):
            self.evict_idle(engine, sparing=residence.number)
        return True

    def _has_unreserved(self, engine: Engine, residence: Residence, others: Iterable[Residence]) -> bool:
        """Return whether a session fits beside what is kept free for others."""
        reserved = sum(self._reserved(other) for other in others if other is not residence)
        return reserved + self._reserved(residence) <= engine.capacity_tokens

    def _reserved(self, residence: Residence) -> int:
        """Return the tokens that are kept free for a session, where admission is not by what it holds."""
        if self._rules.admission == "peak":
            return residence.session.peak_tokens
        return min(self._rules.longest_tokens, self._kind.capacity_tokens)

    def _on(self, engine: Engine, residence: Residence) -> tuple[Engine, Mapping[Shard, int], Shard]:
        [shard] = engine.shards
        return engine, {shard: residence.context_tokens - residence.held(0)}, shard

    def _move(self, engine: Engine, residence: Residence) -> bool:
        """Move a running session to another instance with room."""
        for other in self._fleet.taking():
            if other is engine:
                continue
            self.reach(other)
            needed = residence.held(engine.step) + int(HEADROOM * other.capacity_tokens)
            if other.shards[0].room(other.step) >= needed:
                tokens = residence.held(engine.step)
                engine.put_aside(residence)
                self.world.num_moved += 1
                rate = self._move_bytes_per_s()
                if rate is not None:
                    self._homes.pop(residence.number, None)
                    self._come_back(residence, tokens * self._kind.token_bytes / rate)
                    return True
                other.join(residence, {other.shards[0]: residence.context_tokens}, other.shards[0])
                self._homes[residence.number] = other
                self.replan(other)
                return True
        return False

    def _start_more(self, count: int, reason: str) -> None:
        rules = self._rules.elasticity
        if rules is None:
            return
        for _ in range(min(count, rules.maximum_instances - self._fleet.num_present)):
            number = self._fleet.launch(is_billed=rules.bills_startup)
            self.changed(reason)
            self.world.queue.add(Event(self.now_s + rules.startup_s, EventKind.CAPACITY, number))

    def _mark_idle(self, number: int) -> None:
        rules = self._rules.elasticity
        engine = self.engines[number]
        if rules is None or engine.running or engine.idle:
            return
        mark = self._idle_marks[number] = self._idle_marks.get(number, 0) + 1
        at_s = max(self.now_s, engine.clock_s) + rules.scale_in_idle_s
        self.world.queue.add(Event(at_s, EventKind.CAPACITY, number, mark))

    def _stop_if_idle(self, engine: Engine) -> None:
        rules = self._rules.elasticity
        if rules is None or engine.running or engine.idle:
            return
        if len(self.engines) <= rules.minimum_instances:
            return
        self._stop(engine, "idle")

    def _stop_if_done(self, engine: Engine) -> None:
        """End an instance that leaves, once it runs nothing: what its idle sessions hold goes with it."""
        if engine.running or engine.number not in self.engines:
            return
        if engine.idle and self._move_bytes_per_s() is not None:
            return  # their next turns fetch it
        for residence in list(engine.idle.values()):
            engine.drop(residence)
            self._homes.pop(residence.number, None)
        self._stop(engine, "left")

    def _stop(self, engine: Engine, reason: str) -> None:
        self._fleet.stop(engine)
        self.changed(reason)
