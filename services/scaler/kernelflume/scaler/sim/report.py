"""What is shown of simulations: tables for the terminal, rows for CSV, and what they rest on."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from rich.table import Table

from kernelflume.scaler.sim.plots import Point, points_of
from kernelflume.scaler.sim.sweep import spread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kernelflume.scaler.sim.result import Result
    from kernelflume.scaler.sim.simulation import Simulator

COLUMNS = (
    "strategy", "layout", "$/Mtok", "cost $", "GPU-hours", "most GPUs", "step p50 ms", "step p99 ms",
    "steps in SLO %", "token p99 ms", "tokens in SLO %", "waits", "put aside", "refused", "changes",
)  # fmt: skip
TEXT_COLUMNS = 2
"""So many of the first ones are words."""


@dataclass(frozen=True, slots=True)
class Swept:
    """One combination of a sweep; timelines are not kept."""

    chosen: dict[str, Any]
    """Its settings, each by itself."""
    facts: dict[str, Any]
    rows: tuple[tuple[str, ...], ...]
    """Cells of the table."""
    results: tuple[dict[str, Any], ...]
    points: tuple[Point, ...]

    @property
    def words(self) -> str:
        """The settings, for people."""
        return words_of(self.chosen)


def words_of(chosen: Mapping[str, Any]) -> str:
    """Return the settings of a combination in words."""
    return ", ".join(f"{name.rpartition('.')[2]} {value}" for name, value in spread(chosen).items())


def swept_of(chosen: dict[str, Any], facts: dict[str, Any], results: Sequence[Result]) -> Swept:
    """Keep what a sweep shows of one combination.

    Args:
        chosen: its settings.
        facts: what ``describe`` says of it.
        results: of its strategies.
    """
    return Swept(
        chosen=spread(chosen),
        facts=facts,
        rows=tuple(cells(result) for result in results),
        results=tuple(fields_of(result) for result in results),
        points=tuple(points_of(results, words_of(chosen))),
    )


def table(results: Sequence[Result], title: str) -> Table:
    """Return the results as a table, a strategy a line."""
    return _table(title, COLUMNS, TEXT_COLUMNS, [cells(result) for result in results])


def sweep_table(swept: Sequence[Swept], title: str) -> Table:
    """Return all combinations as one table, which begins with their settings."""
    names, rows = sweep_rows(swept)
    head = (*(name.rpartition(".")[2] for name in names), *COLUMNS)
    return _table(title, head, len(names) + TEXT_COLUMNS, rows)


def sweep_rows(swept: Sequence[Swept]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return the names of the settings and the rows of a sweep's table, which begin with their values.

    Where combinations differ in which settings they change, these are one column of words.
    """
    names = list(swept[0].chosen)
    if any(list(one.chosen) != names for one in swept):
        return ["settings"], [(one.words or "as configured", *row) for one in swept for row in one.rows]
    return names, [(*map(str, one.chosen.values()), *row) for one in swept for row in one.rows]


def _table(title: str, head: Sequence[str], num_texts: int, rows: Sequence[Sequence[str]]) -> Table:
    shown = Table(title=title, title_justify="left")
    for index, name in enumerate(head):
        shown.add_column(name, justify="left" if index < num_texts else "right", overflow="fold")
    for row in rows:
        shown.add_row(*row)
    return shown


def cells(result: Result) -> tuple[str, ...]:
    """Return a result's row of a table, the columns being ``COLUMNS``."""
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
    return {field.name: getattr(result, field.name) for field in fields(result) if field.name != "timeline"}


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
