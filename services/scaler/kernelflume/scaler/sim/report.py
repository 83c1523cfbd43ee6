"""What is written of a simulation: tables for the terminal, CSV and JSON files, and what was assumed."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from kernelflume.scaler.sim.result import Result
    from kernelflume.scaler.sim.simulation import Simulator

_COLUMNS = (
    "strategy", "layout", "$/Mtok", "cost $", "GPU-hours", "most GPUs", "step p50 ms", "step p99 ms",
    "steps in SLO %", "token p99 ms", "tokens in SLO %", "waits", "put aside", "refused", "changes",
)  # fmt: skip


def table(results: Sequence[Result], title: str) -> Table:
    """Return the results as a table, a strategy a line."""
    shown = Table(title=title, title_justify="left")
    for index, name in enumerate(_COLUMNS):
        shown.add_column(name, justify="left" if index < 2 else "right", overflow="fold")
    for result in results:
        shown.add_row(*_cells(result))
    return shown


def _cells(result: Result) -> tuple[str, ...]:
    return (
        result.strategy,
        result.layout,
        f"{result.usd_per_million_tokens:.2f}",
        f"{result.cost_usd:.2f}",
        f"{sum(result.gpu_hours.values()):.2f}",
        str(result.most_gpus),
        f"{result.step_p50_s * 1e3:.1f}",
        f"{result.step_p99_s * 1e3:.1f}",
        f"{100 * result.step_attainment:.2f}",
        f"{result.turn_p99_s * 1e3:.1f}",
        f"{100 * result.turn_attainment:.2f}",
        str(result.num_waits),
        str(result.num_put_aside),
        str(result.refused_tokens),
        str(result.num_changes),
    )


def fields_of(result: Result) -> dict[str, Any]:
    """Return a result without its timeline, ready for JSON."""
    fields = asdict(result)
    del fields["timeline"]
    return fields


def write_report(folder: Path, simulator: Simulator, results: Sequence[Result]) -> list[Path]:
    """Write all files of a run; return their paths.

    Raises:
        ConfigurationError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        summary = folder / "results.json"
        facts = {
            "config": simulator.config.model_dump(mode="json"),
            "facts": describe(simulator),
            "results": [fields_of(result) for result in results],
        }
        summary.write_text(json.dumps(facts, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        paths = [summary, folder / "results.csv"]
        write_rows(paths[1], [flat(fields_of(result)) for result in results])
        for result in results:
            samples = folder / f"timeline-{result.strategy}.csv"
            write_rows(samples, [asdict(sample) for sample in result.timeline.samples])
            changes = folder / f"changes-{result.strategy}.csv"
            write_rows(changes, [asdict(change) for change in result.timeline.changes])
            paths += [samples, changes]
    except OSError as error:
        raise ConfigurationError(f"{folder}: {error}") from error
    return paths


def describe(simulator: Simulator) -> dict[str, Any]:
    """Return what a result rests on: sizes, which kernels were measured, prices with their sources."""
    config, demand = simulator.config, simulator.demand
    return {
        "model": simulator.model.name,
        "token_bytes": simulator.model.token_bytes,
        "weight_bytes": simulator.model.weight_bytes(config.weight_dtype_bytes),
        "rank_capacity_tokens": simulator.rank_capacity_tokens,
        "measured_kernels": simulator.kernels.measured,
        "num_sessions": len(demand.sessions),
        "sessions_left_out": demand.num_left_out,
        "output_tokens": demand.output_tokens,
        "prices": {name: price.model_dump() for name, price in sorted(config.prices.items())},
    }


def flat(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a row for a CSV file: figures by hardware become one column each."""
    row = {name: value for name, value in fields.items() if not isinstance(value, dict)}
    for name, values in fields.items():
        if isinstance(values, dict):
            row.update({f"{name}.{key}": value for key, value in values.items()})
    return row


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows as CSV; columns are those of all rows, in the order in which they come up."""
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(rows)
