"""What the weight node itself takes for a step: its captured graphs, timed with no attention node in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class GraphTimes:
    """Seconds of one captured graph, all of its microbatches together."""

    step_s: float
    """The whole graph."""
    outside_s: float
    """Its parts that are in no layer: embedding, head, choice of tokens."""
    projections_s: float
    """Its projections of queries, keys and values, of all layers."""


@dataclass(frozen=True, slots=True)
class WeightTimes:
    """Times of all captured graphs."""

    num_layers: int
    graphs: Mapping[tuple[int, int], GraphTimes]
    """By (microbatches, rows of each that the graph holds)."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of microbatches that there are graphs of."""
        return tuple(sorted({count for count, _ in self.graphs}))

    def find(self, num_microbatches: int, num_rows: int) -> GraphTimes | None:
        """Return the times of the graph that runs a step of ``num_rows`` rows, if there is one."""
        part = -(-num_rows // num_microbatches)
        fitting = [rows for count, rows in self.graphs if count == num_microbatches and rows >= part]
        return self.graphs[num_microbatches, min(fitting)] if fitting else None

    def layer_s(self, graph: GraphTimes) -> float:
        """Return T_p + T_f of one layer, all microbatches together."""
        return max(0.0, graph.step_s - graph.outside_s) / self.num_layers

    def projection_s(self, graph: GraphTimes) -> float:
        """Return T_p of one layer, all microbatches together."""
        return min(graph.projections_s / self.num_layers, self.layer_s(graph))
