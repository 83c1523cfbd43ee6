"""The instances that there are: those that start, run and leave, and what is paid for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelflume.scaler.sim.engine import Engine
from kernelflume.scaler.sim.shards import Shard

if TYPE_CHECKING:
    from kernelflume.scaler.sim.instance_kind import InstanceKind
    from kernelflume.scaler.sim.world import World


class InstanceFleet:
    """All instances of one cluster, which alone uses it."""

    def __init__(self, world: World, engines: dict[int, Engine], kind: InstanceKind) -> None:
        """Begin with no instance.

        Args:
            world: clock and bills.
            engines: of the cluster, by number; instances that are ready are put there.
            kind: of all of them.
        """
        self._world = world
        self._engines = engines
        self._kind = kind
        self._bills: dict[int, int] = {}
        """Engine number -> bill."""
        self._num_launched = 0
        self.starting: set[int] = set()
        self.leaving: set[int] = set()
        """Engines that take no more turns."""

    @property
    def num_billed(self) -> int:
        """Instances that are paid for."""
        return len(self._bills)

    @property
    def num_present(self) -> int:
        """Instances that run or start."""
        return len(self._engines) + len(self.starting)

    def may_grow(self, most: int) -> bool:
        """Return whether instances start, or could where there may be so many."""
        return bool(self.starting) or self.num_present < most

    def taking(self) -> list[Engine]:
        """Return the instances that take turns."""
        return [engine for engine in self._engines.values() if engine.number not in self.leaving]

    def launch(self, *, is_billed: bool) -> int:
        """Begin to start an instance, paid for from now on or once it is ready; return its number."""
        self._num_launched += 1
        number = self._num_launched
        self.starting.add(number)
        if is_billed:
            self._bill(number)
        return number

    def begin(self, number: int) -> None:
        """Let an instance that was launched decode."""
        self.starting.discard(number)
        if number not in self._bills:
            self._bill(number)
        engine = Engine(number, self._kind.steps, self._world.meter)
        engine.clock_s = self._world.queue.now_s
        capacity = self._kind.capacity_tokens
        engine.shards.append(Shard(number, capacity, capacity, ways=self._kind.num_ranks))
        self._engines[number] = engine

    def stop(self, engine: Engine) -> None:
        """End an instance, and what is paid for it."""
        self.leaving.discard(engine.number)
        self._world.billing.end(self._bills.pop(engine.number), self._world.queue.now_s)
        del self._engines[engine.number]

    def _bill(self, number: int) -> None:
        num_gpus = self._kind.num_ranks * self._kind.gpus_per_rank
        self._bills[number] = self._world.billing.begin(
            self._kind.hardware, num_gpus, self._world.queue.now_s
        )
