"""One strategy on one workload: builds the cluster, lets virtual time pass, and sums up."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kernelflume.core.errors import ConfigurationError
from kernelflume.scaler.sim.attention_nodes import PoolKind
from kernelflume.scaler.sim.attention_pool import AttentionPoolCluster
from kernelflume.scaler.sim.course import Course
from kernelflume.scaler.sim.events import EventQueue
from kernelflume.scaler.sim.instances import InstanceCluster, InstanceKind, InstanceRules
from kernelflume.scaler.sim.kernels import kernels_of
from kernelflume.scaler.sim.prefix_cache import PrefixCache
from kernelflume.scaler.sim.profiles import load_hardware, load_model
from kernelflume.scaler.sim.result import summarize
from kernelflume.scaler.sim.step_model import DisaggregatedSteps, Exchange, InstanceSteps, WeightRank
from kernelflume.scaler.sim.strategy_settings import Fixed, Instances, KernelFlume
from kernelflume.scaler.sim.workload import build_demand
from kernelflume.scaler.sim.world import World

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kernelflume.scaler.sim.cluster import Cluster
    from kernelflume.scaler.sim.config import SimulationConfig
    from kernelflume.scaler.sim.kernels import Kernels
    from kernelflume.scaler.sim.profiles import Hardware
    from kernelflume.scaler.sim.result import Result
    from kernelflume.scaler.sim.shards import Residence
    from kernelflume.scaler.sim.step_model import StepModel
    from kernelflume.scaler.sim.strategy_settings import Strategy

_WEIGHT_EXCHANGE_S = 7e-6
"""What an exchange costs the weight node where it does not wait, measured on two H200 (docs/gpu.md)."""


class Simulator:
    """Runs the strategies of a configuration on the same sessions."""

    def __init__(self, config: SimulationConfig, folder: Path) -> None:
        """Read profiles, tables and traces.

        Args:
            config: what to do.
            folder: that its paths are relative to.

        Raises:
            ConfigurationError: something cannot be read, or does not fit the hardware.
        """
        self.config = config
        self._folder = folder
        self._tables = folder / config.kernel_tables if config.kernel_tables is not None else None
        self.model = load_model(config.model, folder)
        self.hardware = load_hardware(config.hardware, folder)
        self.demand = build_demand(config.workload, folder=folder, seed=config.seed)
        self.kernels = self._kernels(self.hardware)
        self._rank = WeightRank(
            self.model,
            self.kernels,
            tensor_parallel=config.tensor_parallel,
            overhead_s=config.step_overhead_s,
        )
        weights = self.model.weight_bytes(config.weight_dtype_bytes) / config.tensor_parallel
        self.weight_bytes = weights
        if weights + config.reserve_gb * 1e9 > self.hardware.memory_bytes:
            raise ConfigurationError(
                f"{self.model.name} takes {weights / 1e9:.1f} GB of each {self.hardware.name}: "
                "more than there is; raise tensor_parallel"
            )
        self.rank_capacity_tokens = self._tokens(
            config.tensor_parallel * (self.hardware.memory_bytes - weights - config.reserve_gb * 1e9)
        )
        self._rows = self.demand.concurrency or 32

    def run(self, strategy: Strategy, progress: Callable[[float], None] | None = None) -> Result:
        """Run one strategy.

        Args:
            strategy: of the configuration.
            progress: told the share that is done, from time to time.
        """
        match strategy:
            case Fixed():
                return self._fixed(strategy, progress)
            case Instances():
                kind = self.instance_kind(strategy.ranks_per_instance, strategy.merge_latency_s)
                rules = InstanceRules(
                    admission=strategy.admission,
                    placement=strategy.placement,
                    migrates=strategy.migrates,
                    elasticity=self._with_loading(strategy),
                    num_instances=strategy.minimum_instances,
                )
                looks_s = 1.0 if strategy.needs_looks else None
                layout = f"instances of CP {strategy.ranks_per_instance}"
                return self._run(
                    strategy.name,
                    layout,
                    lambda world, over: InstanceCluster(world, over, kind, rules),
                    looks_s,
                    progress,
                )
            case KernelFlume():
                pool = self.pool_kind(strategy)
                return self._run(
                    strategy.name,
                    f"{strategy.weight_nodes} W ({self.config.hardware}) + A ({pool.attention_price})",
                    lambda world, over: AttentionPoolCluster(world, over, pool),
                    strategy.look_s,
                    progress,
                )

    def _with_loading(self, strategy: Instances) -> Instances:
        """Return the strategy with the time to load weights as part of its start-up."""
        if strategy.load_gb_per_s is None:
            return strategy
        loading_s = self.weight_bytes / (strategy.load_gb_per_s * 1e9)
        return strategy.model_copy(update={"startup_s": strategy.startup_s + loading_s})

    def pool_kind(self, strategy: KernelFlume) -> PoolKind:
        """Return what a KernelFlume strategy's nodes are."""
        config = self.config
        name = strategy.attention_hardware or config.hardware
        hardware = load_hardware(name, self._folder)
        kernels = self.kernels if name == config.hardware else self._kernels(hardware)
        steps = DisaggregatedSteps(
            self._rank,
            kernels,
            attention_gpus=strategy.attention_gpus,
            exchange=Exchange(
                latency_s=strategy.exchange_latency_s,
                bytes_per_s=config.tensor_parallel
                * min(self.hardware.link_bytes_per_s(config.link), hardware.link_bytes_per_s(config.link)),
                query_first=strategy.query_first,
                weight_exchange_s=_WEIGHT_EXCHANGE_S,
            ),
            microbatches=strategy.microbatches,
            weight_nodes=strategy.weight_nodes,
            replicas=strategy.replicas,
        )
        policy = strategy.policy
        if policy.tpot_slo_s is None:
            policy = policy.model_copy(update={"tpot_slo_s": config.tpot_slo_s})
        if "microbatches" not in policy.model_fields_set:
            policy = policy.model_copy(update={"microbatches": strategy.microbatches})
        if policy.minimum_nodes < strategy.replicas:
            policy = policy.model_copy(update={"minimum_nodes": strategy.replicas})
        if policy.most_nodes < policy.minimum_nodes:
            raise ConfigurationError(f"{strategy.name}: {strategy.replicas} replicas need as many nodes")
        return PoolKind(
            weight_hardware=config.hardware,
            weight_gpus=strategy.weight_nodes * config.tensor_parallel,
            attention_price=strategy.attention_price or name,
            attention_gpus=strategy.attention_gpus,
            node_capacity_tokens=self._tokens(
                strategy.attention_gpus * (hardware.memory_bytes - config.reserve_gb * 1e9)
            )
            // strategy.replicas,
            token_bytes=self.model.token_bytes,
            steps=steps,
            profile=steps.profile(rows=self._rows, prewarm_s=strategy.prewarm_s),
            policy=policy,
            prewarm_s=strategy.prewarm_s,
            look_s=strategy.look_s,
            spread_tokens=strategy.spread_tokens,
            packs=strategy.placement == "pack",
            replicas=strategy.replicas,
            spot=strategy.spot,
            seed=config.seed,
        )

    def kv_demand(self) -> tuple[float, int]:
        """Return the mean and the most tokens held on a pool without bounds, whose ranks are always full.

        A pool of full ranks attends at the pace of one of them.
        """
        steps = self.instance_kind(1).steps
        unbounded = _FullRanks(steps, self.rank_capacity_tokens)
        capacity = max(1, sum(session.peak_tokens for session in self.demand.sessions))
        kind = InstanceKind(
            hardware=self.config.hardware,
            num_ranks=1,
            gpus_per_rank=0,
            rank_capacity_tokens=2 * capacity,
            token_bytes=self.model.token_bytes,
            steps=unbounded,
        )
        rules = InstanceRules(
            admission="current", placement="emptiest", migrates=False, elasticity=None, num_instances=1
        )
        timeline = self._run(
            "demand", "", lambda world, over: InstanceCluster(world, over, kind, rules), None, None
        ).timeline
        return timeline.mean_held_tokens, max(sample.held_tokens for sample in timeline.samples)

    def pool_tokens(self, size_for: str) -> float:
        """Return the tokens that a fixed pool is to hold, by a rule of ``Fixed.size_for``."""
        if size_for == "longest":
            concurrency = self.demand.concurrency or len(self.demand.sessions)
            peaks = sorted((session.peak_tokens for session in self.demand.sessions), reverse=True)
            return float(sum(peaks[:concurrency]))
        mean, most = self.kv_demand()
        return mean if size_for == "average" else most

    def _fixed(self, strategy: Fixed, progress: Callable[[float], None] | None) -> Result:
        """Run every DP x CP of the ranks and return the best: most tokens in time, then the cheapest."""
        num_ranks = strategy.num_ranks
        if num_ranks is None:
            num_ranks = max(1, math.ceil(self.pool_tokens(strategy.size_for) / self.rank_capacity_tokens))
        layouts = [ways for ways in range(1, num_ranks + 1) if num_ranks % ways == 0]
        results = []
        for index, ways in enumerate(layouts):
            kind = self.instance_kind(ways, strategy.merge_latency_s)
            rules = InstanceRules(
                admission=strategy.admission,
                placement="emptiest",
                migrates=strategy.migrates,
                elasticity=None,
                num_instances=num_ranks // ways,
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
            results.append(self._run(strategy.name, layout, build, None, told))
        return min(
            results,
            key=lambda result: (
                result.refused_tokens,
                -round(result.turn_attainment, 4),
                result.usd_per_million_tokens,
            ),
        )

    def _run(
        self,
        name: str,
        layout: str,
        build: Callable[[World, Callable[[Residence, float], bool]], Cluster],
        look_s: float | None,
        progress: Callable[[float], None] | None,
    ) -> Result:
        workload = self.config.workload
        world = World(
            queue=EventQueue(),
            slo_s=self.config.tpot_slo_s,
            keeps_kv=workload.keep_between_turns,
            prefill_tokens_per_s=workload.prefill_tokens_per_s,
            token_bytes=self.model.token_bytes,
        )
        other_usd_per_hour, cache = 0.0, workload.prefix_cache
        if cache is not None:
            world.cache = PrefixCache(self._tokens(cache.capacity_gb * 1e9))
            world.fetch_bytes_per_s = cache.fetch_gb_per_s * 1e9 if cache.fetch_gb_per_s else None
            other_usd_per_hour = cache.capacity_gb * cache.usd_per_gb_hour
        course = Course(self.demand, workload, world, build)
        end_s = course.run(look_s, progress)
        world.billing.end_all(end_s)
        return summarize(
            name,
            layout,
            world,
            end_s=end_s,
            prices=self.config.prices,
            other_usd_per_hour=other_usd_per_hour,
        )

    def _kernels(self, hardware: Hardware) -> Kernels:
        return kernels_of(hardware, self._tables, self.config.weight_dtype_bytes)

    def instance_kind(self, num_ranks: int, merge_latency_s: float = 0.0) -> InstanceKind:
        return InstanceKind(
            hardware=self.config.hardware,
            num_ranks=num_ranks,
            gpus_per_rank=self.config.tensor_parallel,
            rank_capacity_tokens=self.rank_capacity_tokens,
            token_bytes=self.model.token_bytes,
            steps=InstanceSteps(
                self._rank, num_ranks=num_ranks, link=self.config.link, merge_latency_s=merge_latency_s
            ),
        )

    def _tokens(self, num_bytes: float) -> int:
        return int(num_bytes / self.model.token_bytes)


class _FullRanks:
    """Steps of a pool that is as large as need be: none of its ranks reads more than it can hold."""

    def __init__(self, steps: StepModel, most_tokens: int) -> None:
        self._steps = steps
        self._most_tokens = most_tokens

    def step_s(self, rows: int, most_read_tokens: float, num_shards: int) -> float:
        """Return T_step."""
        return self._steps.step_s(rows, min(most_read_tokens, self._most_tokens), num_shards)
