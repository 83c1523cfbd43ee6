"""The folder that a command leaves: JSON, CSV, plots, and one HTML page."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kernelflume.core.errors import ConfigurationError
from kernelflume.scaler.sim import page, plots
from kernelflume.scaler.sim.report import describe, fields_of, flat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from kernelflume.scaler.sim.report import Swept
    from kernelflume.scaler.sim.result import Result
    from kernelflume.scaler.sim.simulation import Simulator


def missing() -> str | None:
    """Say what a report cannot have as a library is not installed, and how to get it; None if it has all."""
    libraries = {
        "report.html needs jinja2": page.is_available(),
        "plots need matplotlib": plots.is_available(),
    }
    lacking = [what for what, is_there in libraries.items() if not is_there]
    return f"{' and '.join(lacking)}: pip install 'kernelflume[sim]'" if lacking else None


def write_report(folder: Path, simulator: Simulator, results: Sequence[Result]) -> list[Path]:
    """Write all files of a run; return their paths.

    Raises:
        ConfigurationError: the folder cannot be written.
    """
    drawn = plots.draw_run(results, slo_s=simulator.config.tpot_slo_s) if plots.is_available() else {}
    texts = {
        "results.json": _json(
            {
                "config": simulator.config.model_dump(mode="json"),
                "facts": describe(simulator),
                "results": [fields_of(result) for result in results],
            }
        )
    }
    if page.is_available():
        texts["report.html"] = page.run_page(simulator, results, drawn)
    tables = {"results.csv": [flat(fields_of(result)) for result in results]}
    for result in results:
        tables[f"timeline-{result.strategy}.csv"] = [sample._asdict() for sample in result.timeline.samples]
        tables[f"changes-{result.strategy}.csv"] = [asdict(change) for change in result.timeline.changes]
    return _write(folder, texts, tables, drawn)


def write_sweep(folder: Path, fields: Mapping[str, Any], swept: Sequence[Swept]) -> list[Path]:
    """Write all files of a sweep; return their paths.

    Args:
        folder: to write to.
        fields: the configuration as it was read.
        swept: all combinations.

    Raises:
        ConfigurationError: the folder cannot be written.
    """
    points = [point for one in swept for point in one.points]
    drawn = plots.draw_costs(points) if plots.is_available() else {}
    runs = [{"settings": one.chosen, "facts": one.facts, "results": one.results} for one in swept]
    texts = {"sweep.json": _json({"config": fields, "runs": runs})}
    if page.is_available():
        texts["report.html"] = page.sweep_page(fields, swept, drawn)
    rows = [{**one.chosen, **flat(result)} for one in swept for result in one.results]
    return _write(folder, texts, {"sweep.csv": rows}, drawn)


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows as CSV; columns are those of all rows, in the order in which they come up."""
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(rows)


def _write(
    folder: Path,
    texts: Mapping[str, str],
    tables: Mapping[str, Sequence[dict[str, Any]]],
    drawn: Mapping[str, str],
) -> list[Path]:
    texts = {**texts, **{f"{name}.svg": svg for name, svg in drawn.items()}}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        for name, rows in tables.items():
            write_rows(folder / name, rows)
    except OSError as error:
        raise ConfigurationError(f"{folder}: {error}") from error
    return [folder / name for name in (*texts, *tables)]


def _json(facts: Mapping[str, Any]) -> str:
    # A configuration as it was read may hold dates where it should not: they are words here.
    return json.dumps(facts, indent=2, allow_nan=False, default=str) + "\n"
