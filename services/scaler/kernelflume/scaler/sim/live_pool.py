"""The attention pool as it is on the machine of a recording: what a simulation elsewhere leaves out.

Prompts are computed on the weight node that decodes, tokens lie in pages, and a node lives on for a moment
after its last sequence has left it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kernelflume.scaler.sim.attention_nodes import AttentionNodes
from kernelflume.scaler.sim.attention_pool import AttentionPoolCluster
from kernelflume.scaler.sim.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kernelflume.scaler.pool_view import PoolView
    from kernelflume.scaler.sim.attention_nodes import PoolKind
    from kernelflume.scaler.sim.measured_steps import MeasuredSteps
    from kernelflume.scaler.sim.measures import StepMeter
    from kernelflume.scaler.sim.shards import Residence, Shard
    from kernelflume.scaler.sim.world import World

_STALENESS_S = 1.0
"""Until a node's figures reach a look of the live scaler."""


def uncomputed_tokens(page_tokens: int) -> int:
    """Return what a sequence holds beyond its prompt: half a page for the one that is not full.

    An answer's last token is computed by nobody, so that a prompt brings one token less than it has.
    """
    return page_tokens // 2 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFacts:
    """What was measured of the machine, besides its steps."""

    initial_nodes: int
    page_tokens: int
    release_s: float
    """From the moment that nothing refers to a node to the end of its process."""


class PrefillingEngine(Engine):
    """A batch in which prompts are computed in the steps that decode, and hold them up."""

    def __init__(
        self, number: int, model: MeasuredSteps, meter: StepMeter, *, uncomputed_tokens: int
    ) -> None:
        """Begin as an engine does.

        Args:
            number: of the engine.
            model: tells what prompts cost as well.
            meter: of all steps.
            uncomputed_tokens: what a session is given beyond its prompt.
        """
        super().__init__(number, model, meter)
        self._steps = model
        self._uncomputed_tokens = uncomputed_tokens
        self.first_tokens: dict[int, float] = {}
        """When the first token of a session came, by its number."""

    def join(self, residence: Residence, added: Mapping[Shard, int], tail: Shard) -> None:
        """Compute what is added of the prompt, and let the session decode from the next step on.

        All that the prompt takes beyond the decode steps which it shares is added at once.
        """
        self.clock_s += self._steps.prefill_s(sum(added.values()) - self._uncomputed_tokens)
        super().join(residence, added, tail)
        # One that was put aside has had its first token.
        self.first_tokens.setdefault(residence.number, self.clock_s + self.step_s())


class LiveNodes(AttentionNodes):
    """Nodes that live on for a moment after their last sequence has left them."""

    def __init__(self, world: World, engine: Engine, kind: PoolKind, *, release_s: float) -> None:
        """Begin with no node; ``release_s`` is as in ``LiveFacts``."""
        super().__init__(world, engine, kind)
        self._release_s = release_s
        self._empty_since_s: dict[int, float] = {}
        """Number of a draining shard -> since when nothing refers to it."""

    def release_empty(self) -> int:
        """End draining nodes together, once nothing has referred to any for long enough; return how many."""
        now_s = self._world.queue.now_s
        for shard in self.operation.drained if self.operation is not None else []:
            if shard.tails or shard.residents:
                return 0
            if now_s - self._empty_since_s.setdefault(shard.number, now_s) < self._release_s:
                return 0
        return super().release_empty()

    def view(self, *, num_waiting: int, waiting_tokens: int) -> PoolView:
        """Return the pool as the live scaler would see it."""
        seen = super().view(num_waiting=num_waiting, waiting_tokens=waiting_tokens)
        return replace(seen, staleness_s=_STALENESS_S)


class LivePool(AttentionPoolCluster):
    """The pool of a recording."""

    def __init__(
        self,
        world: World,
        on_turn_over: Callable[[Residence, float], bool],
        kind: PoolKind,
        *,
        steps: MeasuredSteps,
        facts: LiveFacts,
    ) -> None:
        """Begin with the weight node; ``steps`` are those of ``kind``."""
        super().__init__(world, on_turn_over, kind)
        self.prefilling = PrefillingEngine(
            self._engine.number, steps, world.meter, uncomputed_tokens=uncomputed_tokens(facts.page_tokens)
        )
        self._engine = self.prefilling
        self.engines[self._engine.number] = self._engine
        self._nodes = LiveNodes(world, self._engine, kind, release_s=facts.release_s)
        self._facts = facts

    def start(self) -> None:
        """Begin with the nodes that there were; the weight node is not counted as one."""
        for _ in range(self._facts.initial_nodes):
            self._nodes.publish(self._nodes.launch())
        self._set_thresholds(self._decide())
        self.sample()

    def answered_s(self) -> float | None:
        """Return when nodes have said what they hold of a prompt that comes now; None where that is at once.

        The weight node asks them between two steps, and takes in what they say before the next.
        """
        engine = self._engine
        self.reach(engine)
        return engine.clock_s + engine.step_s() / 2 if engine.running else None

    def _headroom(self, engine: Engine) -> int:
        """Return a page for each sequence that runs: the weight node leaves it free."""
        return len(engine.running) * self._facts.page_tokens
