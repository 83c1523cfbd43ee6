"""Weight nodes with an attention pool that the live policy sizes, under the virtual clock.

``scaler.sizing`` decides, on the view that the live scaler would have; ``attention_nodes`` does what it says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelflume.scaler.sim.attention_nodes import NOTICED, PREWARMED, TAKEN, AttentionNodes
from kernelflume.scaler.sim.cluster import HEADROOM, Cluster
from kernelflume.scaler.sim.engine import Engine
from kernelflume.scaler.sim.next_look import quiet_until_s
from kernelflume.scaler.sim.spread import fill_in_order, level_out, roomiest
from kernelflume.scaler.sizing import SizingAction, SizingReason, SizingState, after_change, size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kernelflume.scaler.sim.attention_nodes import PoolKind
    from kernelflume.scaler.sim.events import Event
    from kernelflume.scaler.sim.shards import Residence, Shard
    from kernelflume.scaler.sim.world import World
    from kernelflume.scaler.sizing import Sizing

_ENGINE = 1
"""There is one batch: several weight nodes step at one pace."""


class AttentionPoolCluster(Cluster):
    """Weight nodes and their attention nodes."""

    def __init__(
        self, world: World, on_turn_over: Callable[[Residence, float], bool], kind: PoolKind
    ) -> None:
        """Begin with the weight nodes, and no attention node yet."""
        super().__init__(world, on_turn_over)
        self._kind = kind
        self._engine = Engine(_ENGINE, kind.steps, world.meter)
        self.engines[_ENGINE] = self._engine
        self._nodes = AttentionNodes(world, self._engine, kind)
        self._state = SizingState()

    def start(self) -> None:
        """Begin with the policy's minimum."""
        kind = self._kind
        self.world.billing.begin(kind.weight_hardware, kind.weight_gpus, self.now_s)
        for _ in range(kind.policy.minimum_nodes):
            self._nodes.publish(self._nodes.launch())
        self._set_thresholds(self._decide())
        self.sample()

    def most_tokens(self) -> int:
        """Return the capacity of the most nodes that may be."""
        return self._kind.policy.most_nodes * self._kind.node_capacity_tokens

    def num_nodes(self) -> int:
        """Return the attention nodes that are billed."""
        return self._nodes.num_billed

    # --- placement -----------------------------------------------------------------------------------

    def place(self, residence: Residence) -> tuple[Engine, Mapping[Shard, int], Shard] | None:
        """Find room for a prompt: short ones whole, long ones so that nodes are left equally free."""
        engine = self._engine
        self.reach(engine)
        shards = self._nodes.open()
        if not shards:
            return None
        headroom = self._headroom(engine) if engine.running else 1
        missing = residence.context_tokens - residence.held(0)
        while missing + headroom > sum(max(0, shard.room(engine.step)) for shard in shards):
            if not self.evict_idle(engine, sparing=residence.number):
                return None
        step = engine.step
        below = {shard: max(0, shard.threshold_tokens - shard.held(step)) for shard in shards}
        if missing > sum(below.values()):
            below = {shard: max(0, shard.room(step)) for shard in shards}
        if self._kind.packs:
            added = fill_in_order(below, missing)
            tail = roomiest(shards, {shard: below[shard] - added[shard] for shard in shards}) or shards[0]
            return engine, added, tail
        best = max(below, key=lambda shard: (below[shard] / (1 + len(shard.tails)), -shard.number))
        if missing < 2 * self._kind.spread_tokens and missing < below[best]:
            return engine, {best: missing}, best
        added = level_out(below, missing)
        tail = max(below, key=lambda shard: (below[shard] - added[shard], -shard.number))
        return engine, added, tail

    def _headroom(self, engine: Engine) -> int:
        """Return the tokens that must be left when a turn joins others."""
        return int(HEADROOM * engine.capacity_tokens)

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
            others = [other for other in self._nodes.open() if other is not shard]
            target = roomiest(others, {other: other.threshold_tokens - other.held(step) for other in others})
            if target is not None:
                engine.move_tail(residence, target)
                continue
            stays = shard.accepts or shard.is_doomed
            if stays and len(shard.tails) <= shard.room(step):
                return True
            target = roomiest(others, {other: other.room(step) for other in others})
            if target is not None:
                engine.move_tail(residence, target)
                continue
            if not self.evict_idle(engine, sparing=-1):
                self.put_aside(engine, engine.newest())
            return False
        return True

    # --- scaling -------------------------------------------------------------------------------------

    def on_short(self) -> None:
        """Do nothing: the next look sees what waits."""

    def on_released(self, engine: Engine) -> None:
        """Do nothing: the next look sees what is empty."""

    def on_look(self) -> float:
        """Look, decide by the live policy, and begin what it says."""
        engine, nodes = self._engine, self._nodes
        self.reach(engine)
        self._release_empty()
        sizing = self._decide()
        self._set_thresholds(sizing)
        num_open = len(nodes.open())
        match sizing.action:
            case SizingAction.SCALE:
                if sizing.target > num_open:
                    nodes.grow(sizing.target - num_open, at_once=sizing.at_once)
                else:
                    nodes.drain(num_open - sizing.target)
                self.changed(str(sizing.reason))
            case SizingAction.PUBLISH:
                self._publish_added(sizing.reason)
            case SizingAction.CANCEL:
                nodes.cancel()
                self._ended(str(sizing.reason))
            case SizingAction.NONE:
                return quiet_until_s(
                    self.now_s,
                    sizing.figures,
                    self._state,
                    self._kind.policy,
                    pending=nodes.pending(),
                    waiting_tokens=self.waiting_tokens(),
                )
        self._admit()
        self.replan(engine)
        return self.now_s

    def on_capacity(self, event: Event) -> None:
        """Nodes have been prewarmed, or a spot node is given notice or taken away."""
        operation = self._nodes.operation
        self.reach(self._engine)
        if event.number == PREWARMED:
            if operation is None or operation.number != event.subject:
                return
            operation.is_ready = True
            if not operation.at_once:
                return
            self._publish_added(SizingReason.FOOTPRINT)
        elif event.number == NOTICED:
            self._give_notice(event.subject)
        elif event.number == TAKEN:
            self._take(event.subject)
        self._admit()
        self.replan(self._engine)

    def _decide(self) -> Sizing:
        kind = self._kind
        view = self._nodes.view(num_waiting=self.num_waiting, waiting_tokens=self.waiting_tokens())
        sizing, self._state = size(
            view, self._state, kind.policy, profile=kind.profile, token_bytes=kind.token_bytes
        )
        return sizing

    def _set_thresholds(self, sizing: Sizing) -> None:
        thresholds = {node.node_id: node.threshold_tokens for node in sizing.figures.nodes}
        for shard in self._engine.shards:
            shard.threshold_tokens = thresholds.get(f"a-{shard.number}", shard.threshold_tokens)

    def _publish_added(self, reason: SizingReason) -> None:
        self._nodes.publish_added()
        self._ended(str(reason), prewarm_s=self._kind.prewarm_s)

    def _release_empty(self) -> None:
        """End nodes that nothing refers to any more, and the operation that drained them."""
        for _ in range(self._nodes.release_empty()):
            self.changed("released")
        operation = self._nodes.operation
        if operation is not None and not operation.number and not operation.drained:
            self._nodes.operation = None
            self._state = after_change(self._state, now_s=self.now_s)

    def _ended(self, reason: str, prewarm_s: float | None = None) -> None:
        self._state = after_change(self._state, now_s=self.now_s, prewarm_s=prewarm_s)
        self.changed(reason)

    # --- spot nodes ----------------------------------------------------------------------------------

    def _give_notice(self, number: int) -> None:
        """Let a node that will be taken away take no more ranges: its tails move, its ranges stay."""
        shard = self._nodes.shard(number)
        if shard is not None:
            shard.accepts, shard.is_doomed = False, True
            self.changed("notice")

    def _take(self, number: int) -> None:
        """Lose a node: with copies its ranges live on elsewhere, without them sessions are computed again."""
        shard = self._nodes.shard(number)
        if shard is not None:
            shard.accepts, shard.is_doomed = False, True
            lost = {**shard.residents, **shard.tails}
            for residence in [lost[session] for session in sorted(lost)]:
                if self._kind.replicas > 1 and self._take_over(residence, shard):
                    continue
                if residence.tail is not None:
                    self.put_aside(self._engine, residence)
                else:
                    self._forget(self._engine, residence)
        before = self._nodes.num_billed
        self._nodes.take(number)
        if self._nodes.num_billed == before:
            return
        self.world.num_preempted += 1
        self.changed("preempted")
        operation = self._nodes.operation
        if operation is not None and not operation.added and not operation.drained:
            self._nodes.operation = None
            self._state = after_change(self._state, now_s=self.now_s)

    def _take_over(self, residence: Residence, lost: Shard) -> bool:
        """Let copies on other nodes stand for what a node held; return whether there is room for them."""
        engine, step = self._engine, self._engine.step
        others = self._nodes.open()
        if residence.tail is lost:
            target = roomiest(others, {other: other.room(step) for other in others})
            if target is None:
                return False
            engine.move_tail(residence, target)
        room = {other: max(0, other.room(step) - len(other.tails)) for other in others}
        tokens = residence.parts.get(lost, 0)
        if tokens > sum(room.values()):
            return False
        engine.move_part(residence, lost, level_out(room, tokens) if tokens else {})
        return True
