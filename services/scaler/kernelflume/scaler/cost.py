"""The arithmetic of the scaling policy: budgets and fill horizons. Pure.

Paper section 4.2, with the symbols of the paper beside ours. Bytes count all layers of a model, times are in
seconds, and steps are decode steps. What steps take is predicted by ``core.pipeline_profile``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from kernelflume.core.pipeline_profile import weight_stage_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.core.profile import PerformanceProfile


class Bound(StrEnum):
    """What limits the bytes that one attention node should hold."""

    MEMORY = "memory"
    SLO = "slo"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBudget:
    """C_thresh of one attention node and where it comes from."""

    memory_bytes: float
    """C_mem = beta_mem C_kv_cap"""
    slo_bytes: float
    """C_slo, infinite without an SLO or where no number of attention nodes could meet it."""
    slo_unreachable: bool = False
    """The weight node's own stage is longer than the layer budget."""

    @property
    def threshold_bytes(self) -> float:
        """C_thresh = min(C_mem, C_slo)"""
        return min(self.memory_bytes, self.slo_bytes)

    @property
    def bound(self) -> Bound:
        """The tighter of both."""
        return Bound.SLO if self.slo_bytes < self.memory_bytes else Bound.MEMORY


def layer_budget_s(profile: PerformanceProfile, *, rows: float, tpot_slo_s: float) -> float:
    """Return T_layer_bud: what a layer may take so that a step meets the SLO; negative if nothing is left."""
    return (tpot_slo_s - profile.step_overhead_s.at(rows)) / profile.num_layers


def node_budget(
    capacity_bytes: float,
    *,
    beta_memory: float,
    beta_slo: float,
    tpot_slo_s: float | None = None,
    profile: PerformanceProfile | None = None,
    rows: float = 1,
    microbatches: Sequence[int] = (1,),
) -> NodeBudget:
    """Return the budget of one attention node.

    Args:
        capacity_bytes: C_kv_cap, bytes of keys and values that fit the node.
        beta_memory: share of the capacity that is planned with.
        beta_slo: share of the attention time that is planned with.
        tpot_slo_s: T_slo, or None for memory alone.
        profile: measured times; without one memory alone counts.
        rows: rows of a step for which the weight node's stage and the exchange are looked up.
        microbatches: numbers M that the weight node chooses from: the best counts. With one, a layer's stages
            follow each other and T_A_max is what the weight node's stage leaves of the budget; with several
            they overlap, and it is the whole budget, as in the paper.
    """
    memory_bytes = beta_memory * capacity_bytes
    if tpot_slo_s is None or profile is None:
        return NodeBudget(memory_bytes=memory_bytes, slo_bytes=math.inf)
    budget_s = layer_budget_s(profile, rows=rows, tpot_slo_s=tpot_slo_s)
    possible = [count for count in microbatches if count <= max(1.0, rows)] or [1]
    slo_bytes = max(beta_slo * _scan_bytes(profile, rows, budget_s, count) for count in possible)
    if slo_bytes <= 0:
        return NodeBudget(memory_bytes=memory_bytes, slo_bytes=math.inf, slo_unreachable=True)
    return NodeBudget(memory_bytes=memory_bytes, slo_bytes=slo_bytes)


def _scan_bytes(profile: PerformanceProfile, rows: float, budget_s: float, num_microbatches: int) -> float:
    """Return the bytes of all layers that attention scans in T_A_max; 0 where it has no time left."""
    weight_s = weight_stage_s(profile, rows / num_microbatches)
    attention_s = budget_s - weight_s if num_microbatches == 1 else budget_s / num_microbatches
    scan_s = attention_s - profile.exchange_s.at(rows / num_microbatches)
    if weight_s * num_microbatches > budget_s or scan_s <= 0:
        return 0.0
    # T_A_max is one layer's time and scans one layer's share of the bytes, or of a microbatch's.
    return scan_s * num_microbatches * profile.attention_bytes_per_s * profile.num_layers


def fill_steps(threshold_bytes: float, held_bytes: float, num_tails: int, token_bytes: int) -> float:
    """Return tau_fill: steps until the threshold is reached at one token a tail and step; 0 beyond it."""
    if num_tails == 0:
        return math.inf
    return max(0.0, threshold_bytes - held_bytes) / (num_tails * token_bytes)


def nodes_for(total_bytes: float, threshold_bytes: float) -> int:
    """Return N_A = ceil(C_total / C_thresh), at least 1."""
    return max(1, math.ceil(total_bytes / threshold_bytes - 1e-9))


def balanced_ranges(num_tokens: Sequence[int], num_nodes: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Cut sequences into ranges so that nodes hold equal bytes (post-prefill initialization).

    Sequences are laid end to end and the line is cut into equal parts, so that at most ``num_nodes - 1``
    sequences are cut and any two nodes differ by at most one token. The node of a sequence's last range owns
    its tail.

    Args:
        num_tokens: tokens of each sequence.
        num_nodes: N_A.

    Returns:
        For each sequence its ranges in order of position, as (node, tokens).
    """
    total = sum(num_tokens)
    ends = [total * (node + 1) // num_nodes for node in range(num_nodes)]
    routes: list[tuple[tuple[int, int], ...]] = []
    start, node = 0, 0
    for count in num_tokens:
        ranges: list[tuple[int, int]] = []
        end = start + count
        while start < end:
            while ends[node] <= start:
                node += 1
            take = min(end, ends[node]) - start
            ranges.append((node, take))
            start += take
        routes.append(tuple(ranges))
    return tuple(routes)
