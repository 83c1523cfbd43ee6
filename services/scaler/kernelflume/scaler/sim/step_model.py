"""How long decode steps take: on full instances, and on weight nodes with attention nodes.

The second is ``core.pipeline``'s model, which the live weight node and the live policy use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kernelflume.core import pipeline
from kernelflume.core.pipeline import StageTimes
from kernelflume.core.profile import Curve, PerformanceProfile
from kernelflume.scaler.sim.kernels import SMALL_KERNEL_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.scaler.sim.kernel_tables import ScanLine
    from kernelflume.scaler.sim.kernels import Kernels
    from kernelflume.scaler.sim.profiles import Model

_SMALL_KERNELS = 2
"""Before attention: norm and rotation; after it: norm and activation. Each layer, beside the products."""
_PROFILE_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class StepModel(Protocol):
    """Seconds of a decode step; called by engines, and pure."""

    def step_s(self, rows: int, most_read_tokens: float, num_shards: int) -> float:
        """Return T_step.

        Args:
            rows: sequences that decode.
            most_read_tokens: tokens that the shard with the most reads, of one of its ranks.
            num_shards: places that hold KV.
        """
        ...


@dataclass(frozen=True, slots=True)
class WeightTimes:
    """What a weight-bearing rank takes for a step of so many rows, without attention."""

    projection_s: float
    """T_p, one layer."""
    kv_projection_s: float
    """The part of it that K and V take."""
    post_attention_s: float
    """T_f, one layer, all-reduces included."""
    overhead_s: float
    """Of the step outside the layers."""


class WeightRank:
    """A GPU or tensor-parallel group that holds all weights."""

    def __init__(self, model: Model, kernels: Kernels, *, tensor_parallel: int, overhead_s: float) -> None:
        """Work out times as they are asked for.

        Args:
            model: what is decoded.
            kernels: of its GPUs.
            tensor_parallel: GPUs of the group.
            overhead_s: of a step outside the layers, the head not counted.
        """
        self.model = model
        self.kernels = kernels
        self.tensor_parallel = tensor_parallel
        self._overhead_s = overhead_s
        self._times: dict[float, WeightTimes] = {}

    def times(self, rows: float) -> WeightTimes:
        """Return the times of a step, or of a microbatch, of so many rows."""
        if rows not in self._times:
            self._times[rows] = self._work_out(rows)
        return self._times[rows]

    def _work_out(self, rows: float) -> WeightTimes:
        model, kernels, ways = self.model, self.kernels, self.tensor_parallel
        heads = model.num_query_heads + 2 * model.num_kv_heads
        projection_s = kernels.product_s(rows, heads * model.head_dim / ways, model.hidden_size)
        all_reduce_s = kernels.all_reduce_s(ways, rows * model.hidden_size * 2)
        small_s = _SMALL_KERNELS * SMALL_KERNEL_S
        return WeightTimes(
            projection_s=projection_s + small_s,
            kv_projection_s=projection_s * 2 * model.num_kv_heads / heads,
            post_attention_s=kernels.product_s(
                rows, model.hidden_size, model.num_query_heads * model.head_dim / ways
            )
            + kernels.product_s(rows, 2 * model.ffn_size / ways, model.hidden_size)
            + kernels.product_s(rows, model.hidden_size, model.ffn_size / ways)
            + 2 * all_reduce_s
            + small_s,
            overhead_s=self._overhead_s
            + kernels.product_s(rows, model.vocabulary_size / ways, model.hidden_size),
        )


class InstanceSteps:
    """Steps of a full instance of context-parallel ranks: all compute all rows, and share the KV evenly."""

    def __init__(
        self,
        rank: WeightRank,
        *,
        num_ranks: int,
        link: str,
        merge_latency_s: float,
        full_tokens: int | None = None,
    ) -> None:
        """Build the model.

        Args:
            rank: one of them.
            num_ranks: that share the KV.
            link: over which they exchange partial attention.
            merge_latency_s: of such an exchange in one layer, without its bytes.
            full_tokens: of a rank, where they are filled one after another; None where they share evenly.
        """
        self._full_tokens = full_tokens
        self._merge_latency_s = merge_latency_s if num_ranks > 1 else 0.0
        self._rank = rank
        self._num_ranks = num_ranks
        self._link = link
        self._cache: dict[int, tuple[float, float]] = {}

    def step_s(self, rows: int, most_read_tokens: float, num_shards: int) -> float:  # noqa: ARG002 - one shard
        """Return T_step; of the one shard of an instance each rank reads ``most_read_tokens``."""
        if rows not in self._cache:
            self._cache[rows] = self._line(rows)
        fixed_s, token_s = self._cache[rows]
        if self._full_tokens is not None:
            most_read_tokens = min(self._num_ranks * most_read_tokens, self._full_tokens)
        return fixed_s + token_s * most_read_tokens

    def _line(self, rows: int) -> tuple[float, float]:
        """Return seconds of a step without KV, and seconds a token that each rank reads."""
        rank, model = self._rank, self._rank.model
        times, ways = rank.times(rows), rank.tensor_parallel
        scan = scan_line(rank.kernels, model, rows, ways)
        partial_bytes = rows * model.num_query_heads * model.head_dim / ways * 2
        merge_s = self._merge_latency_s + rank.kernels.ring_s(self._num_ranks, partial_bytes, self._link)
        layer_s = times.projection_s + times.post_attention_s + scan.start_s + merge_s
        token_s = model.token_bytes / (ways * scan.bytes_per_s)
        return times.overhead_s + model.num_layers * layer_s, token_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What lies between a weight node and its attention nodes."""

    latency_s: float
    """One layer's, both ways."""
    bytes_per_s: float
    """One direction, of the weight node."""
    query_first: bool
    weight_exchange_s: float
    """What each exchange costs the weight node itself where it does not wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One layer of one microbatch: seconds, but for what the tokens add."""

    weight_s: float
    start_s: float
    """Of attention over nothing."""
    token_s: float
    """Of attention, for each token of the fullest node."""
    exchange_s: float
    overhead_s: float
    """Of the whole step."""


class DisaggregatedSteps:
    """Steps of a weight node with attention nodes, in the number of microbatches that is fastest."""

    def __init__(
        self,
        rank: WeightRank,
        attention: Kernels,
        *,
        attention_gpus: int,
        exchange: Exchange,
        microbatches: Sequence[int],
        weight_nodes: int = 1,
        replicas: int = 1,
    ) -> None:
        """Build the model.

        Args:
            rank: a weight node.
            attention: kernels of attention nodes.
            attention_gpus: GPUs of one attention node, which divide the heads.
            exchange: what lies between.
            microbatches: numbers to choose from, of each weight node.
            weight_nodes: that share the batch evenly, and the attention nodes.
            replicas: attention nodes that each new key and value goes to.
        """
        self._rank = rank
        self._weight_nodes = weight_nodes
        self._replicas = replicas
        self._attention = attention
        self._attention_gpus = attention_gpus
        self._exchange = exchange
        self._microbatches = tuple(sorted(microbatches))
        self._cache: dict[tuple[float, int], tuple[float, ScanLine, float]] = {}
        self._parts: dict[tuple[int, int, int], _Part] = {}

    def step_s(self, rows: int, most_read_tokens: float, num_shards: int) -> float:
        """Return T_step of the fastest number of microbatches."""
        return min(
            self.step_in_s(rows, most_read_tokens, num_shards, count)
            for count in self._microbatches
            if count == self._microbatches[0] or count <= rows
        )

    def step_in_s(self, rows: int, most_read_tokens: float, num_shards: int, count: int) -> float:
        """Return T_step in ``count`` microbatches of each weight node."""
        num_layers, num_parts = self._rank.model.num_layers, count * self._weight_nodes
        part = self._part(rows, num_shards, count)
        stages = StageTimes(
            weight_s=part.weight_s,
            attention_s=part.start_s + part.token_s * most_read_tokens,
            exchange_s=part.exchange_s,
            weight_exchange_s=self._exchange.weight_exchange_s,
        )
        alone_s = pipeline.step_s(stages, count, num_layers=num_layers, overhead_s=part.overhead_s)
        if self._weight_nodes == 1:
            return alone_s
        # Attention nodes serve the parts of all weight nodes one after another: they may set the pace.
        serving_s = num_layers * num_parts * stages.attention_s
        return max(alone_s, part.overhead_s + serving_s + part.weight_s)

    def _part(self, rows: int, num_shards: int, count: int) -> _Part:
        """Return what does not change with the tokens, of one microbatch and layer."""
        key = (rows, num_shards, count)
        if key not in self._parts:
            model, num_parts = self._rank.model, count * self._weight_nodes
            weight_s, scan, exchange_s = self._stage(rows / num_parts, num_shards)
            divided = model.num_layers * num_parts * self._attention_gpus
            self._parts[key] = _Part(
                weight_s=weight_s,
                start_s=scan.start_s,
                token_s=model.token_bytes / (divided * scan.bytes_per_s),
                exchange_s=exchange_s,
                overhead_s=self._rank.times(rows / self._weight_nodes).overhead_s,
            )
        return self._parts[key]

    def profile(self, *, rows: int, prewarm_s: float) -> PerformanceProfile:
        """Return the same figures in the form that the live policy reads.

        Args:
            rows: for which the attention bandwidth is given, as the profile has one figure for it.
            prewarm_s: T_prewarm.
        """
        # By the rows of all weight nodes, which is what the policy sees of them.
        parts = self._weight_nodes
        times = {count: self._rank.times(count / parts) for count in _PROFILE_ROWS}
        stages = {count: self._stage(count / parts, 1) for count in _PROFILE_ROWS}

        def curve(name: str) -> Curve:
            return Curve(tuple((float(count), getattr(times[count], name)) for count in _PROFILE_ROWS))

        return PerformanceProfile(
            model_id=self._rank.model.name,
            hardware="simulated",
            num_layers=self._rank.model.num_layers,
            projection_s=curve("projection_s"),
            post_attention_s=curve("post_attention_s"),
            step_overhead_s=curve("overhead_s"),
            exchange_s=Curve(
                tuple(
                    (float(count), max(0.0, scan.start_s + exchange_s))
                    for count, (_, scan, exchange_s) in stages.items()
                )
            ),
            attention_bytes_per_s=self._attention_gpus * self._stage(rows / parts, 1)[1].bytes_per_s,
            prewarm_s=prewarm_s,
        )

    def _stage(self, rows: float, num_shards: int) -> tuple[float, ScanLine, float]:
        """Return T_p + T_f, the line of attention, and the exposed exchange, all of one layer."""
        key = (rows, num_shards)
        if key not in self._cache:
            model, exchange, times = self._rank.model, self._exchange, self._rank.times(rows)
            # Queries go to every node and partial results come back, the log-sum-exp with them.
            row_bytes = model.num_query_heads * (4 * model.head_dim + 4)
            # The first copy of a row's key and value goes while attention runs; others come on top.
            copies_bytes = (self._replicas - 1) * 4 * model.num_kv_heads * model.head_dim
            exchange_s = (
                exchange.latency_s + (num_shards * row_bytes + copies_bytes) * rows / exchange.bytes_per_s
            )
            if exchange.query_first:
                exchange_s -= times.kv_projection_s
            self._cache[key] = (
                times.projection_s + times.post_attention_s,
                scan_line(self._attention, model, rows, self._attention_gpus),
                exchange_s,
            )
        return self._cache[key]


class PacedSteps:
    """Steps of which none takes less than the pace that is asked for."""

    def __init__(self, steps: StepModel, least_s: float) -> None:
        """Take at least ``least_s`` seconds."""
        self._steps = steps
        self._least_s = least_s

    def step_s(self, rows: int, most_read_tokens: float, num_shards: int) -> float:
        """Return T_step."""
        return max(self._least_s, self._steps.step_s(rows, most_read_tokens, num_shards))


def scan_line(kernels: Kernels, model: Model, rows: float, num_gpus: int) -> ScanLine:
    """Return the line of one layer's attention over the bytes of one of the GPUs that divide the heads."""
    return kernels.scan(
        rows,
        max(1, model.num_query_heads // num_gpus),
        max(1, model.num_kv_heads // num_gpus),
        model.head_dim,
    )
