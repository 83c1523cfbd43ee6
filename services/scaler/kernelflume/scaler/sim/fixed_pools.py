"""Fixed pools: how many ranks a rule asks for, and which DP x CP of them is the best."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING

from kernelflume.scaler.sim.instance_kind import InstanceKind, InstanceRules
from kernelflume.scaler.sim.instances import InstanceCluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.scaler.sim.cluster import Cluster
    from kernelflume.scaler.sim.result import Result
    from kernelflume.scaler.sim.shards import Residence
    from kernelflume.scaler.sim.simulation import Simulator
    from kernelflume.scaler.sim.step_model import StepModel
    from kernelflume.scaler.sim.strategy_settings import Fixed
    from kernelflume.scaler.sim.world import World


class FixedPools:
    """The fixed pools of one simulator's workload."""

    def __init__(self, simulator: Simulator) -> None:
        """Work out nothing yet."""
        self._simulator = simulator

    @cached_property
    def kv_demand(self) -> tuple[float, int]:
        """The mean and the most tokens held on a pool without bounds, whose ranks are always full.

        A pool of full ranks attends at the pace of one of them.
        """
        simulator = self._simulator
        one = simulator.instance_kind(1)
        capacity = max(1, sum(session.peak_tokens for session in simulator.demand.sessions))
        kind = InstanceKind(
            hardware=one.hardware,
            num_ranks=1,
            gpus_per_rank=0,
            rank_capacity_tokens=2 * capacity,
            token_bytes=one.token_bytes,
            steps=_FullRanks(one.steps, simulator.rank_capacity_tokens),
        )
        rules = InstanceRules(
            admission="current", placement="emptiest", migrates=False, elasticity=None, num_instances=1
        )
        timeline = simulator.run_cluster(
            "demand", "", lambda world, over: InstanceCluster(world, over, kind, rules), None, None
        ).timeline
        return timeline.mean_held_tokens, max(sample.held_tokens for sample in timeline.samples)

    def pool_tokens(self, size_for: str) -> float:
        """Return the tokens that a fixed pool is to hold, by a rule of ``Fixed.size_for``."""
        demand = self._simulator.demand
        concurrency = demand.concurrency or len(demand.sessions)
        match size_for:
            case "longest":
                peaks = sorted((session.peak_tokens for session in demand.sessions), reverse=True)
                return float(sum(peaks[:concurrency]))
            case "bound":
                return float(concurrency * demand.longest_tokens)
            case "average":
                return self.kv_demand[0]
            case _:
                return self.kv_demand[1]

    def best(self, strategy: Fixed, progress: Callable[[float], None] | None) -> Result:
        """Run every DP x CP of the ranks and return the best: most tokens in time, then the cheapest."""
        simulator = self._simulator
        num_ranks = strategy.num_ranks
        if num_ranks is None:
            tokens = self.pool_tokens(strategy.size_for)
            num_ranks = max(1, math.ceil(tokens / simulator.rank_capacity_tokens))
        layouts = [ways for ways in range(1, num_ranks + 1) if num_ranks % ways == 0]
        results = []
        for index, ways in enumerate(layouts):
            kind = simulator.instance_kind(ways, strategy.merge_latency_s, strategy.rank_fill)
            rules = InstanceRules(
                admission=strategy.admission,
                placement="emptiest",
                migrates=strategy.migrates,
                elasticity=None,
                num_instances=num_ranks // ways,
                longest_tokens=simulator.demand.longest_tokens,
            )

            def told(share: float, index: int = index) -> None:
                if progress is not None:
                    progress((index + share) / len(layouts))

            def build(
                world: World,
                over: Callable[[Residence, float], bool],
                kind: InstanceKind = kind,
                rules: InstanceRules = rules,
            ) -> Cluster:
                return InstanceCluster(world, over, kind, rules)

            layout = f"DP {num_ranks // ways} x CP {ways}"
            results.append(simulator.run_cluster(strategy.name, layout, build, None, told))
        return min(
            results,
            key=lambda result: (
                result.refused_tokens,
                -round(result.turn_attainment, 4),
                result.usd_per_million_tokens,
            ),
        )


class _FullRanks:
    """Steps of a pool that is as large as need be: none of its ranks reads more than it can hold."""

    def __init__(self, steps: StepModel, most_tokens: int) -> None:
        self._steps = steps
        self._most_tokens = most_tokens

    def step_s(self, rows: int, most_read_tokens: float, num_shards: int) -> float:
        """Return T_step."""
        return self._steps.step_s(rows, min(most_read_tokens, self._most_tokens), num_shards)
