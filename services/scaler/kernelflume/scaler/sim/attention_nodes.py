"""The attention nodes of a simulated pool, what is paid for them, and the operation that changes them.

What happens follows the live scaler's operations: nodes prewarm, wait to be published, drain until nothing
refers to them. Spot nodes are taken away after a time that is drawn when they are launched.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kernelflume.scaler.policy import emptiest_first
from kernelflume.scaler.pool_view import NodeUse, PendingKind, PoolView
from kernelflume.scaler.sim.events import Event, EventKind
from kernelflume.scaler.sim.shards import Shard

if TYPE_CHECKING:
    from kernelflume.core.profile import PerformanceProfile
    from kernelflume.scaler.scaling_policy import ScalingPolicy
    from kernelflume.scaler.sim.engine import Engine
    from kernelflume.scaler.sim.step_model import StepModel
    from kernelflume.scaler.sim.strategy_settings import Spot
    from kernelflume.scaler.sim.world import World

PREWARMED, NOTICED, TAKEN = range(3)
"""Numbers of events of kind CAPACITY, whose subject is a node: the first of an operation for PREWARMED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolKind:
    """The nodes, and the policy."""

    weight_hardware: str
    weight_gpus: int
    """Of all weight nodes."""
    attention_price: str
    """Name of the price of attention nodes."""
    attention_gpus: int
    node_capacity_tokens: int
    """Of different tokens: what fits a node over the number of copies."""
    token_bytes: int
    steps: StepModel
    profile: PerformanceProfile
    policy: ScalingPolicy
    prewarm_s: float
    look_s: float
    spread_tokens: int
    packs: bool
    """Nodes are filled in the order of their age."""
    replicas: int
    spot: Spot | None
    seed: int
    """Of the lives of spot nodes."""


@dataclass
class Operation:
    """A scale operation of the policy's own."""

    number: int
    """Of the first node that it adds; 0 when it drains."""
    added: list[int] = field(default_factory=list)
    drained: list[Shard] = field(default_factory=list)
    at_once: bool = False
    is_ready: bool = False


class AttentionNodes:
    """All nodes of one pool; its cluster alone uses it."""

    def __init__(self, world: World, engine: Engine, kind: PoolKind) -> None:
        """Begin with no node."""
        self._world = world
        self._engine = engine
        self._kind = kind
        self._bills: dict[int, int] = {}
        """Node -> bill."""
        self._num_launched = 0
        self.operation: Operation | None = None

    @property
    def num_billed(self) -> int:
        """Nodes that are paid for."""
        return len(self._bills)

    def open(self) -> list[Shard]:
        """Return the nodes that take new ranges."""
        return [shard for shard in self._engine.shards if shard.accepts]

    def shard(self, number: int) -> Shard | None:
        """Return a node in the routing table by its number."""
        return next((shard for shard in self._engine.shards if shard.number == number), None)

    # --- growing ---------------------------------------------------------------------------------------

    def launch(self) -> int:
        """Pay for one more node, and return its number."""
        self._num_launched += 1
        number, kind, queue = self._num_launched, self._kind, self._world.queue
        self._bills[number] = self._world.billing.begin(
            kind.attention_price, kind.attention_gpus, queue.now_s
        )
        if kind.spot is not None:
            random = np.random.default_rng([kind.seed, number])
            life_s = random.exponential(3600 / kind.spot.preemptions_per_node_hour)
            taken_at_s = queue.now_s + life_s
            noticed_at_s = max(queue.now_s, taken_at_s - kind.spot.notice_s)
            queue.add(Event(noticed_at_s, EventKind.CAPACITY, number, NOTICED))
            queue.add(Event(taken_at_s, EventKind.CAPACITY, number, TAKEN))
        return number

    def grow(self, count: int, *, at_once: bool) -> None:
        """Begin an operation that adds nodes."""
        added = [self.launch() for _ in range(count)]
        self.operation = Operation(added[0], added=added, at_once=at_once)
        at_s = self._world.queue.now_s + self._kind.prewarm_s
        self._world.queue.add(Event(at_s, EventKind.CAPACITY, added[0], PREWARMED))

    def publish(self, number: int) -> None:
        """Let a node take ranges."""
        capacity = self._kind.node_capacity_tokens
        threshold = int(self._kind.policy.beta_memory * capacity)
        self._engine.shards.append(Shard(number, capacity, threshold, base_step=self._engine.step))

    def publish_added(self) -> None:
        """End the operation by publishing what it added."""
        operation, self.operation = self.operation, None
        for number in operation.added if operation is not None else ():
            self.publish(number)

    # --- shrinking -------------------------------------------------------------------------------------

    def drain(self, count: int) -> None:
        """Begin an operation that drains nodes, as the live scaler chooses them."""
        step = self._engine.step
        by_id = {str(shard.number): shard for shard in self.open()}
        used = {node_id: shard.held(step) for node_id, shard in by_id.items()}
        drained = [by_id[node_id] for node_id in emptiest_first(list(by_id), used)[:count]]
        for shard in drained:
            shard.accepts = False
        self.operation = Operation(0, drained=drained)

    def cancel(self) -> None:
        """End the operation, and undo what it has done."""
        operation, self.operation = self.operation, None
        if operation is None:
            return
        for number in operation.added:
            self._end_bill(number)
        for shard in operation.drained:
            shard.accepts = not shard.is_doomed

    def release_empty(self) -> int:
        """End nodes that take no ranges and to which nothing refers any more; return how many."""
        empty = [
            one for one in self._engine.shards if not one.accepts and not one.tails and not one.residents
        ]
        for shard in empty:
            self._take_out(shard)
        return len(empty)

    def take(self, number: int) -> None:
        """Take a node away: its bill ends."""
        shard = self.shard(number)
        if shard is not None:
            self._take_out(shard)
        elif number in self._bills:
            self._end_bill(number)
            if self.operation is not None and number in self.operation.added:
                self.operation.added.remove(number)

    def _take_out(self, shard: Shard) -> None:
        self._engine.shards.remove(shard)
        self._end_bill(shard.number)
        if self.operation is not None and shard in self.operation.drained:
            self.operation.drained.remove(shard)

    def _end_bill(self, number: int) -> None:
        self._world.billing.end(self._bills.pop(number), self._world.queue.now_s)

    # --- what the policy sees --------------------------------------------------------------------------

    def pending(self) -> PendingKind | None:
        """Return what the running operation has come to."""
        if self.operation is None:
            return None
        if not self.operation.number:
            return PendingKind.DRAINING
        return PendingKind.READY if self.operation.is_ready else PendingKind.GROWING

    def view(self, *, num_waiting: int, waiting_tokens: int) -> PoolView:
        """Return the pool as the live scaler would see it."""
        engine, num_running = self._engine, len(self._engine.running)
        step_s = engine.step_s()
        return PoolView(
            now_s=self._world.queue.now_s,
            nodes=tuple(
                NodeUse(
                    node_id=f"a-{shard.number}",
                    capacity_tokens=shard.capacity_tokens,
                    held_tokens=shard.held(engine.step),
                    num_tails=len(shard.tails),
                    growth_tokens_per_s=len(shard.tails) / step_s if step_s else 0.0,
                )
                for shard in self.open()
            ),
            num_requests=num_running + num_waiting,
            waiting_tokens=waiting_tokens,
            rows=num_running,
            pending=self.pending(),
            is_pending_own=self.operation is not None,
            staleness_s=2 * self._kind.look_s,
        )
