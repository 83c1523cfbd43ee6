"""Runs all experiments, over all cores, and keeps what figures are taken from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import track

from kernelflume.runtime.yamltext import parse_mapping
from kernelflume.scaler.sim.report import fields_of
from kernelflume.scaler.sim.runs import run_many
from kernelflume.scaler.sim.simulation import Simulator
from kernelflume.scaler.sim.strategy_settings import KernelFlume
from kernelflume.scaler.sim.sweep import combinations
from kernelflume.scaler.sim.workload import build_demand

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.reproduction.claims import Claims, Experiment

    from kernelflume.scaler.sim.config import SimulationConfig
    from kernelflume.scaler.sim.result import Result

CONFIGS = Path(__file__).parents[2] / "docs" / "examples" / "paper"
_FIELDS = (
    "strategy", "layout", "usd_per_million_tokens", "gpu_hours", "most_gpus", "duration_s", "output_tokens",
    "refused_tokens", "step_p50_s", "step_p99_s", "step_attainment", "turn_p99_s", "turn_attainment",
    "num_waits", "num_put_aside", "num_changes",
)  # fmt: skip
_DIGITS = 6
"""Significant ones that are kept: fewer than platforms agree on."""


def run_grid(claims: Claims, workers: int) -> dict[str, Any]:
    """Return the rows of all experiments; the same claims and configurations give the same ones."""
    tasks = [
        (name, chosen, config)
        for name, experiment in claims.experiments.items()
        for chosen, config in _combinations(experiment)
    ]
    # The long ones first, so that no core is idle at the end.
    order = sorted(range(len(tasks)), key=lambda place: -_length(tasks[place][2]))
    rows: dict[int, dict[str, Any]] = {}
    ran = run_many([tasks[place][2] for place in order], CONFIGS, num_processes=workers, task=_run)
    for place, row in zip(order, track(ran, "simulations", total=len(order)), strict=True):
        rows[place] = {"settings": tasks[place][1], **row}
    grid: dict[str, Any] = {name: [] for name in claims.experiments}
    for place, (name, _, _) in enumerate(tasks):
        grid[name].append(rows[place])
    return grid


def as_text(grid: dict[str, Any]) -> str:
    """Return the grid as JSON, a result a line."""
    parts = []
    for name, rows in grid.items():
        lines = ",\n".join(f"  {json.dumps(row, sort_keys=True)}" for row in rows)
        parts.append(f"{json.dumps(name)}: [\n{lines}\n]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _combinations(experiment: Experiment) -> Iterator[tuple[dict[str, Any], SimulationConfig]]:
    fields = parse_mapping((CONFIGS / experiment.config).read_text(encoding="utf-8"))
    own = {} if experiment.replaces_sweep else fields.get("sweep", {})
    # A setting with one value is a sweep of one.
    once = {name: [value] for name, value in experiment.settings.items()}
    fields["sweep"] = {**once, **experiment.sweep, **own}
    if experiment.strategies:
        fields["strategies"] = [s for s in fields["strategies"] if s["name"] in experiment.strategies]
    for chosen, config in combinations(fields):
        yield {name: value for name, value in chosen.items() if name not in experiment.settings}, config


def _length(config: SimulationConfig) -> float:
    """Return about what a simulation takes: it grows with sessions and strategies."""
    demand = build_demand(config.workload, folder=CONFIGS, seed=config.seed)
    return len(config.strategies) * len(demand.sessions)


def _run(config: SimulationConfig, folder: Path) -> dict[str, Any]:
    simulator = Simulator(config, folder)
    results = []
    for strategy in config.strategies:
        result = simulator.run(strategy)
        fields = {name: value for name, value in fields_of(result).items() if name in _FIELDS}
        if isinstance(strategy, KernelFlume):
            fields["node_capacity_tokens"] = simulator.pool_kind(strategy).node_capacity_tokens
            fields["attention_gpus"] = strategy.attention_gpus
            fields["step_s_by_nodes"] = _steps(result)
        results.append(_rounded(fields))
    return {
        "token_bytes": simulator.model.token_bytes,
        "rank_capacity_tokens": simulator.rank_capacity_tokens,
        "rank_gpus": config.tensor_parallel,
        "weight_bytes": simulator.model.weight_bytes(config.weight_dtype_bytes),
        "measured_kernels": simulator.kernels.measured,
        "results": results,
    }


def _steps(result: Result) -> dict[str, float]:
    """Return the longest step while so many attention nodes are billed."""
    longest: dict[int, float] = {}
    for sample in result.timeline.samples:
        longest[sample.num_nodes] = max(longest.get(sample.num_nodes, 0.0), sample.step_s)
    return {str(count): step_s for count, step_s in sorted(longest.items()) if step_s}


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return float(f"{value:.{_DIGITS}g}")
        case dict():
            return {name: _rounded(one) for name, one in value.items()}
        case _:
            return value
