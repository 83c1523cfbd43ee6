"""A weight node with an attention pool that the live policy sizes, under the virtual clock.

``scaler.sizing`` decides, on the view that the live scaler would have; what happens then follows the live
scaler's operations: nodes prewarm, wait to be published, drain until nothing refers to them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelflume.scaler.policy import emptiest_first
from kernelflume.scaler.pool_view import NodeUse, PendingKind, PoolView
from kernelflume.scaler.sim.cluster import HEADROOM, Cluster
from kernelflume.scaler.sim.engine import Engine
from kernelflume.scaler.sim.events import Event, EventKind
from kernelflume.scaler.sim.shards import Shard
from kernelflume.scaler.sim.spread import level_out, roomiest
from kernelflume.scaler.sizing import SizingAction, SizingReason, SizingState, after_change, size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kernelflume.core.profile import PerformanceProfile
    from kernelflume.scaler.scaling_policy import ScalingPolicy
    from kernelflume.scaler.sim.cluster import World
    from kernelflume.scaler.sim.shards import Residence
    from kernelflume.scaler.sim.step_model import StepModel
    from kernelflume.scaler.sizing import Sizing

_ENGINE = 1
"""There is one batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolKind:
    """The nodes, and the policy."""

    weight_hardware: str
    weight_gpus: int
    attention_hardware: str
    attention_gpus: int
    node_capacity_tokens: int
    token_bytes: int
    steps: StepModel
    profile: PerformanceProfile
    policy: ScalingPolicy
    prewarm_s: float
    look_s: float
    spread_tokens: int


@dataclass
class _Operation:
    """A scale operation of the policy's own."""

    added: list[tuple[int, int]] = field(default_factory=list)
    """Shard number and bill of nodes that are added."""
    drained: list[Shard] = field(default_factory=list)
    at_once: bool = False
    is_ready: bool = False


class AttentionPoolCluster(Cluster):
    """One weight node and its attention nodes."""

    def __init__(
        self, world: World, on_turn_over: Callable[[Residence, float], bool], kind: PoolKind
    ) -> None:
        """Begin with the weight node, and no attention node yet."""
        super().__init__(world, on_turn_over)
        self._kind = kind
        self._engine = Engine(_ENGINE, kind.steps, world.meter)
        self.engines[_ENGINE] = self._engine
        self._bills: dict[int, int] = {}
        """Shard number -> bill."""
        self._state = SizingState()
        self._operation: _Operation | None = None
        self._num_shards = 0

    def start(self) -> None:
        """Begin with the policy's minimum."""
        kind = self._kind
        self.world.billing.begin(kind.weight_hardware, kind.weight_gpus, self.now_s)
        for _ in range(kind.policy.minimum_nodes):
            self._publish(*self._launch())
        self._set_thresholds(self._decide())
        self.sample()

    def most_tokens(self) -> int:
        """Return the capacity of the most nodes that may be."""
        return self._kind.policy.most_nodes * self._kind.node_capacity_tokens

    def num_nodes(self) -> int:
        """Return the attention nodes that are billed."""
        return len(self._bills)

    # --- placement -----------------------------------------------------------------------------------

    def place(self, residence: Residence) -> tuple[Engine, Mapping[Shard, int], Shard] | None:
        """Find room for a prompt: short ones whole, long ones so that nodes are left equally free."""
        engine = self._engine
        self.reach(engine)
        headroom = int(HEADROOM * engine.capacity_tokens) if engine.running else 1
        missing = residence.context_tokens - residence.held(0)
        while missing + headroom > sum(self._free(shard) for shard in self._open()):
            if not self.evict_idle(engine, sparing=residence.number):
                return None
        step = engine.step
        below = {shard: max(0, shard.threshold_tokens - shard.held(step)) for shard in self._open()}
        if missing > sum(below.values()):
            below = {shard: max(0, shard.room(step)) for shard in self._open()}
        best = max(below, key=lambda shard: (below[shard] / (1 + len(shard.tails)), -shard.number))
        if missing < 2 * self._kind.spread_tokens and missing < below[best]:
            return engine, {best: missing}, best
        added = level_out(below, missing)
        tail = max(below, key=lambda shard: (below[shard] - added[shard], -shard.number))
        return engine, added, tail

    def make_room(self, engine: Engine) -> None:
        """Move tails off nodes that are full or drain; in a full pool the newest session gives way."""
        while True:
            step = engine.step
            crowded = [
                shard
                for shard in engine.shards
                if shard.tails
                and (not shard.accepts or len(shard.tails) > shard.threshold_tokens - shard.held(step))
            ]
            if all(self._relieve(engine, shard) for shard in crowded):
                return

    def _relieve(self, engine: Engine, shard: Shard) -> bool:
        """Move what has to leave a shard; return False where a session gave way: then look at all anew.

        Nodes below their threshold come first. Where none is left, tails stay as long as there is capacity.
        """
        step = engine.step
        for residence in sorted(shard.tails.values(), key=lambda one: one.number):
            fits_threshold = len(shard.tails) <= shard.threshold_tokens - shard.held(step)
            if shard.accepts and fits_threshold:
                return True
            others = [other for other in self._open() if other is not shard]
            target = roomiest(others, {other: other.threshold_tokens - other.held(step) for other in others})
            if target is not None:
                engine.move_tail(residence, target)
                continue
            if shard.accepts and len(shard.tails) <= shard.room(step):
                return True
            target = roomiest(others, {other: other.room(step) for other in others})
            if target is not None:
                engine.move_tail(residence, target)
                continue
            if not self.evict_idle(engine, sparing=-1):
                self.put_aside(engine, engine.newest())
            return False
        return True

    def _open(self) -> list[Shard]:
        return [shard for shard in self._engine.shards if shard.accepts]

    def _free(self, shard: Shard) -> int:
        return max(0, shard.room(self._engine.step))

    # --- scaling -------------------------------------------------------------------------------------

    def on_short(self) -> None:
        """Do nothing: the next look sees what waits."""

    def on_released(self, engine: Engine) -> None:
        """Do nothing: the next look sees what is empty."""

    def on_look(self) -> None:
        """Look, decide by the live policy, and begin what it says."""
        engine = self._engine
        self.reach(engine)
        self._release_drained()
        sizing = self._decide()
        self._set_thresholds(sizing)
        match sizing.action:
            case SizingAction.SCALE:
                self._scale(sizing)
            case SizingAction.PUBLISH:
                self._publish_all(sizing.reason)
            case SizingAction.CANCEL:
                self._cancel(sizing.reason)
            case SizingAction.NONE:
                return
        self._admit()
        self.replan(engine)

    def on_capacity(self, event: Event) -> None:
        """Nodes have been prewarmed: those of ``event.subject``, the number of the first one."""
        operation = self._operation
        if operation is None or not operation.added or operation.added[0][0] != event.subject:
            return
        operation.is_ready = True
        if operation.at_once:
            self.reach(self._engine)
            self._publish_all(SizingReason.FOOTPRINT)
            self._admit()
            self.replan(self._engine)

    def _view(self) -> PoolView:
        engine = self._engine
        step_s = engine.step_s()
        return PoolView(
            now_s=self.now_s,
            nodes=tuple(
                NodeUse(
                    node_id=f"a-{shard.number}",
                    capacity_tokens=shard.capacity_tokens,
                    held_tokens=shard.held(engine.step),
                    num_tails=len(shard.tails),
                    growth_tokens_per_s=len(shard.tails) / step_s if step_s else 0.0,
                )
                for shard in self._open()
            ),
            num_requests=len(engine.running) + self.num_waiting,
            waiting_tokens=self.waiting_tokens(),
            rows=len(engine.running),
            pending=self._pending(),
            is_pending_own=self._operation is not None,
            staleness_s=2 * self._kind.look_s,
        )

    def _pending(self) -> PendingKind | None:
        if self._operation is None:
            return None
        if self._operation.drained:
            return PendingKind.DRAINING
        return PendingKind.READY if self._operation.is_ready else PendingKind.GROWING

    def _decide(self) -> Sizing:
        kind = self._kind
        sizing, self._state = size(
            self._view(), self._state, kind.policy, profile=kind.profile, token_bytes=kind.token_bytes
        )
        return sizing

    def _set_thresholds(self, sizing: Sizing) -> None:
        thresholds = {node.node_id: node.threshold_tokens for node in sizing.figures.nodes}
        for shard in self._engine.shards:
            shard.threshold_tokens = thresholds.get(f"a-{shard.number}", shard.threshold_tokens)

    def _scale(self, sizing: Sizing) -> None:
        active = self._open()
        if sizing.target > len(active):
            added = [self._launch() for _ in range(sizing.target - len(active))]
            self._operation = _Operation(added=added, at_once=sizing.at_once)
            at_s = self.now_s + self._kind.prewarm_s
            self.world.queue.add(Event(at_s, EventKind.CAPACITY, added[0][0]))
        else:
            step = self._engine.step
            by_id = {str(shard.number): shard for shard in active}
            used = {str(shard.number): shard.held(step) for shard in active}
            victims = emptiest_first(list(by_id), used)[: len(active) - sizing.target]
            drained = [by_id[node_id] for node_id in victims]
            for shard in drained:
                shard.accepts = False
            self._operation = _Operation(drained=drained)
        self.changed(str(sizing.reason))

    def _launch(self) -> tuple[int, int]:
        self._num_shards += 1
        kind = self._kind
        bill = self.world.billing.begin(kind.attention_hardware, kind.attention_gpus, self.now_s)
        self._bills[self._num_shards] = bill
        return self._num_shards, bill

    def _publish(self, number: int, bill: int) -> None:
        self._bills[number] = bill
        capacity = self._kind.node_capacity_tokens
        threshold = int(self._kind.policy.beta_memory * capacity)
        self._engine.shards.append(Shard(number, capacity, threshold, base_step=self._engine.step))

    def _publish_all(self, reason: SizingReason) -> None:
        operation, self._operation = self._operation, None
        if operation is None:
            return
        for number, bill in operation.added:
            self._publish(number, bill)
        self._state = after_change(self._state, now_s=self.now_s, prewarm_s=self._kind.prewarm_s)
        self.changed(str(reason))

    def _cancel(self, reason: SizingReason) -> None:
        operation, self._operation = self._operation, None
        if operation is None:
            return
        for number, _ in operation.added:
            self.world.billing.end(self._bills.pop(number), self.now_s)
        for shard in operation.drained:
            shard.accepts = True
        self._state = after_change(self._state, now_s=self.now_s)
        self.changed(str(reason))

    def _release_drained(self) -> None:
        """End draining nodes that nothing refers to any more."""
        operation = self._operation
        if operation is None or not operation.drained:
            return
        for shard in [one for one in operation.drained if not one.tails and not one.residents]:
            operation.drained.remove(shard)
            self._engine.shards.remove(shard)
            self.world.billing.end(self._bills.pop(shard.number), self.now_s)
            self.changed("released")
        if not operation.drained:
            self._operation = None
            self._state = after_change(self._state, now_s=self.now_s)
