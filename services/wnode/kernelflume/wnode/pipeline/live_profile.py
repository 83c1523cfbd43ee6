"""The pipeline model's figures as steps tell them, and what the model makes of them. Pure.

A step of one microbatch tells what the attention nodes' side takes, attention and exchange together, at so
many tokens. A step of several tells the part of the exchange that overlaps with nothing: on the weight node
where that sets the pace, else on the attention nodes. Until one was seen it is taken for nothing, so that a
split is tried rather than missed; the trial tells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelflume.core.pipeline import StageTimes, fill_s, step_s

if TYPE_CHECKING:
    from kernelflume.wnode.pipeline.load import Load
    from kernelflume.wnode.pipeline.remote_times import RemoteTimes
    from kernelflume.wnode.pipeline.weight_times import GraphTimes, WeightTimes

_SHARE = 0.25
_HALF_LIFE = 4096
"""Steps after which half of what a split was seen to cost is forgotten: a disturbed trial is not for ever."""
_LEAST_ATTENTION = 0.5
"""Attention of several microbatches side by side is taken for at most twice as fast as one after another."""


@dataclass(frozen=True, slots=True)
class StepStages:
    """Where the time of a step's graph went: the stages are seconds a layer, as in ``core.profile``."""

    projection_s: float
    attention_s: float
    post_attention_s: float
    outside_s: float
    """What the graph has outside the layers, one step."""
    graph_s: float
    """How long the graph ran."""


@dataclass(slots=True)
class _SplitCost:
    """What each of several microbatches was seen to cost a stage, a layer."""

    weight_s: float = 0.0
    attention_s: float = 0.0
    num_seen: int = 0
    seen_last: int = 0


class LiveProfile:
    """Owned by the step loop's thread."""

    def __init__(self, weights: WeightTimes, remote: RemoteTimes) -> None:
        self._weights = weights
        self._remote = remote
        self._graphs: dict[tuple[int, int], GraphTimes | None] = {}
        """Those that were looked for: at most one for each number of rows."""
        self._split: dict[int, _SplitCost] = {}
        self._num_steps = 0

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of microbatches that there are graphs of."""
        return self._weights.counts

    def observe(self, num_microbatches: int, load: Load, seconds: float) -> None:
        """Note how long a graph ran."""
        self._num_steps += 1
        graph = self._graph(num_microbatches, load.num_rows)
        if graph is None:
            return
        layers_s = seconds - graph.outside_s
        if num_microbatches == 1:
            layer_s = layers_s / self._weights.num_layers
            self._remote.observe(load.num_tokens, max(0.0, layer_s - self._weights.layer_s(graph)))
            return
        times = self.stages(num_microbatches, load)
        if times is not None:
            layers_s -= fill_s(times, num_microbatches)
            pace_s = layers_s / self._weights.num_layers / num_microbatches
            self._learn_split(num_microbatches, load, pace_s, times.weight_s)

    def stages(self, num_microbatches: int, load: Load) -> StageTimes | None:
        """Return one microbatch's stages, or None as long as too little was seen."""
        graph = self._graph(num_microbatches, load.num_rows)
        attention_s = self._remote.at(load.num_tokens / num_microbatches)
        if graph is None or attention_s is None:
            return None
        weight_s = self._weights.layer_s(graph) / num_microbatches
        if num_microbatches == 1:
            return StageTimes(weight_s, attention_s)
        cost = self._split.get(num_microbatches, _SplitCost())
        kept = math.exp2((cost.seen_last - self._num_steps) / _HALF_LIFE)
        return StageTimes(
            weight_s,
            max(_LEAST_ATTENTION * attention_s, attention_s + kept * cost.attention_s),
            weight_exchange_s=kept * cost.weight_s,
        )

    def predict(self, num_microbatches: int, load: Load) -> float | None:
        """Predict how long a graph would run, or return None as long as too little was seen."""
        times = self.stages(num_microbatches, load)
        graph = self._graph(num_microbatches, load.num_rows)
        if times is None or graph is None:
            return None
        return step_s(
            times, num_microbatches, num_layers=self._weights.num_layers, overhead_s=graph.outside_s
        )

    def explain(self, num_microbatches: int, load: Load, seconds: float) -> StepStages | None:
        """Return where the time of a step went, as one microbatch of all rows would spend it.

        A profile that is made of steps of different numbers of microbatches stays one of the same stages that
        way. Where only one number is possible the stages are those of all microbatches together, and
        attention is what they do not hide.
        """
        graph = self._graph(num_microbatches, load.num_rows)
        serial, remote_s = self._graph(1, load.num_rows), self._remote.at(load.num_tokens)
        if graph is None:
            return None
        attention_s = max(
            0.0,
            (seconds - graph.outside_s) / self._weights.num_layers - self._weights.layer_s(graph),
        )
        if num_microbatches > 1 and serial is not None and remote_s is not None:
            graph, attention_s = serial, remote_s
        projection_s = self._weights.projection_s(graph)
        return StepStages(
            projection_s=projection_s,
            attention_s=attention_s,
            post_attention_s=self._weights.layer_s(graph) - projection_s,
            outside_s=graph.outside_s,
            graph_s=seconds,
        )

    def _graph(self, num_microbatches: int, num_rows: int) -> GraphTimes | None:
        key = (num_microbatches, num_rows)
        if key not in self._graphs:
            self._graphs[key] = self._weights.find(num_microbatches, num_rows)
        return self._graphs[key]

    def _learn_split(self, count: int, load: Load, pace_s: float, weight_s: float) -> None:
        """Explain a microbatch's pace by the stage that is the longer one by itself.

        The other one cannot cost more than would make it as long.
        """
        cost = self._split.setdefault(count, _SplitCost())
        cost.num_seen += 1
        cost.seen_last = self._num_steps
        share = max(_SHARE, 1 / cost.num_seen)
        attention_s = self._remote.at(load.num_tokens / count) or 0.0
        at_weight_s, at_attention_s = max(0.0, pace_s - weight_s), pace_s - attention_s
        if weight_s >= attention_s:
            cost.weight_s += share * (at_weight_s - cost.weight_s)
            cost.attention_s = min(cost.attention_s, max(0.0, at_attention_s))
        else:
            cost.attention_s += share * (at_attention_s - cost.attention_s)
            cost.weight_s = min(cost.weight_s, at_weight_s)
