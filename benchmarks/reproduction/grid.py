"""Runs all experiments, over all cores, and keeps what figures are taken from."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import track

from kernelflume.runtime.yamltext import parse_mapping
from kernelflume.scaler.sim.report import fields_of
from kernelflume.scaler.sim.runs import run_many
from kernelflume.scaler.sim.simulation import Simulator
from kernelflume.scaler.sim.strategy_settings import Fixed, KernelFlume
from kernelflume.scaler.sim.sweep import combinations
from kernelflume.scaler.sim.workload_settings import TraceSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.reproduction.claims import Claims, Experiment, Part

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


def run_grid(claims: Claims, workers: int, *, part: Part) -> dict[str, Any]:
    """Return the rows of the experiments of one part; the same claims and configurations give the same ones.

    A strategy that several experiments run on the same workload and hardware is run once.
    """
    rows = [
        (name, chosen, config)
        for name, experiment in claims.experiments.items()
        if experiment.part == part
        for chosen, config in combinations_of(experiment)
    ]
    tasks = {task_key(task): task for _, _, config in rows for task in tasks_of(config)}
    # The long ones first, so that no core is idle at the end.
    order = sorted(tasks, key=lambda key: -_length(tasks[key]))
    ran = run_many([tasks[key] for key in order], CONFIGS, num_processes=workers, task=_run)
    done = dict(zip(order, track(ran, "simulations", total=len(order)), strict=True))
    grid: dict[str, Any] = {name: [] for name, _, _ in rows}
    for name, chosen, config in rows:
        ran_here = [(task, done[task_key(task)]) for task in tasks_of(config)]
        results = [
            {**found, "strategy": strategy.name}
            for task, each in ran_here
            for strategy, found in zip(task.strategies, each["results"], strict=True)
        ]
        grid[name].append({"settings": chosen, **ran_here[0][1], "results": results})
    return grid


def tasks_of(config: SimulationConfig) -> Iterator[SimulationConfig]:
    """Yield what is run at a time: fixed pools together, which share what sessions hold; others alone."""
    for is_fixed, several in groupby(config.strategies, lambda strategy: isinstance(strategy, Fixed)):
        if is_fixed:
            yield config.model_copy(update={"strategies": tuple(several)})
        else:
            yield from (config.model_copy(update={"strategies": (strategy,)}) for strategy in several)


def task_key(task: SimulationConfig) -> str:
    """Return what the results of a task depend on: all but names, and what was swept to come to it."""
    fields = task.model_dump(mode="json", exclude={"name", "sweep", "vary"})
    for strategy in fields["strategies"]:
        del strategy["name"]
    return json.dumps(fields, sort_keys=True)


def as_text(grid: dict[str, Any]) -> str:
    """Return the grid as JSON, a result a line."""
    parts = []
    for name, rows in grid.items():
        lines = ",\n".join(f"  {json.dumps(row, sort_keys=True)}" for row in rows)
        parts.append(f"{json.dumps(name)}: [\n{lines}\n]")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def combinations_of(experiment: Experiment) -> Iterator[tuple[dict[str, Any], SimulationConfig]]:
    """Yield each combination of an experiment: what was chosen, and the configuration."""
    fields = parse_mapping((CONFIGS / experiment.config).read_text(encoding="utf-8"))
    own = {} if experiment.replaces_sweep else fields.get("sweep", {})
    # A setting with one value is a sweep of one.
    once = {name: [value] for name, value in experiment.settings.items()}
    fields["sweep"] = {**once, **own, **experiment.sweep}
    if experiment.strategies:
        fields["strategies"] = [s for s in fields["strategies"] if s["name"] in experiment.strategies]
    for chosen, config in combinations(fields):
        yield {name: value for name, value in chosen.items() if name not in experiment.settings}, config


def _length(config: SimulationConfig) -> int:
    """Return about what a simulation takes: it grows with sessions and strategies."""
    source = config.workload.source
    return len(config.strategies) * (0 if isinstance(source, TraceSource) else source.num_sessions)


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
