"""One strategy on one workload: builds the cluster, lets virtual time pass, and sums up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelflume.core.errors import ConfigurationError
from kernelflume.scaler.sim.attention_nodes import PoolKind
from kernelflume.scaler.sim.attention_pool import AttentionPoolCluster
from kernelflume.scaler.sim.course import Course
from kernelflume.scaler.sim.events import EventQueue
from kernelflume.scaler.sim.fixed_pools import FixedPools
from kernelflume.scaler.sim.instance_kind import InstanceKind, InstanceRules
from kernelflume.scaler.sim.instances import InstanceCluster
from kernelflume.scaler.sim.kernels import kernels_of
from kernelflume.scaler.sim.prefix_cache import PrefixCache
from kernelflume.scaler.sim.profiles import load_hardware, load_model
from kernelflume.scaler.sim.result import summarize
from kernelflume.scaler.sim.step_model import (
    DisaggregatedSteps,
    Exchange,
    InstanceSteps,
    PacedSteps,
    WeightRank,
)
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
    from kernelflume.scaler.sim.strategy_settings import RankFill, Strategy

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
        self.fixed_pools = FixedPools(self)

    def run(self, strategy: Strategy, progress: Callable[[float], None] | None = None) -> Result:
        """Run one strategy.

        Args:
            strategy: of the configuration.
            progress: told the share that is done, from time to time.
        """
        match strategy:
            case Fixed():
                return self.fixed_pools.best(strategy, progress)
            case Instances():
                kind = self.instance_kind(
                    strategy.ranks_per_instance, strategy.merge_latency_s, strategy.rank_fill
                )
                rules = InstanceRules(
                    admission=strategy.admission,
                    placement=strategy.placement,
                    migrates=strategy.migrates,
                    elasticity=self._with_loading(strategy),
                    num_instances=strategy.minimum_instances,
                    longest_tokens=self.demand.longest_tokens,
                )
                looks_s = 1.0 if strategy.needs_looks else None
                layout = f"instances of CP {strategy.ranks_per_instance}"
                return self.run_cluster(
                    strategy.name,
                    layout,
                    lambda world, over: InstanceCluster(world, over, kind, rules),
                    looks_s,
                    progress,
                )
            case KernelFlume():
                pool = self.pool_kind(strategy)
                return self.run_cluster(
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
            steps=self._paced(steps),
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

    def run_cluster(
        self,
        name: str,
        layout: str,
        build: Callable[[World, Callable[[Residence, float], bool]], Cluster],
        look_s: float | None,
        progress: Callable[[float], None] | None,
    ) -> Result:
        """Run the cluster that ``build`` makes.

        Args:
            name: of the strategy.
            layout: for people.
            build: makes it, of the world and what is to be told of each turn that ended.
            look_s: between two looks of its scaler; None if it has none.
            progress: told the share that is done, from time to time.
        """
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

    def instance_kind(
        self, num_ranks: int, merge_latency_s: float = 0.0, rank_fill: RankFill = "even"
    ) -> InstanceKind:
        """Return what an instance of so many ranks is."""
        steps = InstanceSteps(
            self._rank,
            num_ranks=num_ranks,
            link=self.config.link,
            merge_latency_s=merge_latency_s,
            full_tokens=self.rank_capacity_tokens if rank_fill == "in_order" else None,
        )
        return InstanceKind(
            hardware=self.config.hardware,
            num_ranks=num_ranks,
            gpus_per_rank=self.config.tensor_parallel,
            rank_capacity_tokens=self.rank_capacity_tokens,
            token_bytes=self.model.token_bytes,
            steps=self._paced(steps),
        )

    def _paced(self, steps: StepModel) -> StepModel:
        least_s = self.config.workload.least_step_s
        return PacedSteps(steps, least_s) if least_s else steps

    def _tokens(self, num_bytes: float) -> int:
        return int(num_bytes / self.model.token_bytes)
