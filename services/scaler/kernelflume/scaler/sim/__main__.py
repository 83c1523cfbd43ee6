"""`kernelflume sim`: what a workload would cost, by strategy (`python -m kernelflume.scaler.sim`)."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from kernelflume.core.errors import ConfigurationError, KernelFlumeError
from kernelflume.runtime.service import EXIT_FAILED, EXIT_REFUSED
from kernelflume.runtime.yamltext import parse_mapping
from kernelflume.scaler.sim import plots
from kernelflume.scaler.sim.config import config_of, read_text
from kernelflume.scaler.sim.report import fields_of, flat, table, write_report, write_rows
from kernelflume.scaler.sim.runs import num_cores, run_many
from kernelflume.scaler.sim.simulation import Simulator
from kernelflume.scaler.sim.sweep import combinations, set_setting, spread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernelflume.scaler.sim.result import Result

_PIPE_COLUMNS = 220

app = typer.Typer(
    help="Simulate a workload on hardware that is not there, by the live scaling policy.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_Config = Annotated[
    Path, typer.Argument(help="YAML file; docs/simulator.md says what is in it.", metavar="CONFIG")
]
_Output = Annotated[
    Path | None, typer.Option(help="Folder of the report. [default: the configuration's name, here]")
]

_Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A dotted setting, as in `sweep`, in place of the configuration's; YAML. Repeatable.",
    ),
]


@app.command()
def run(
    config: _Config,
    *,
    output: _Output = None,
    setting: _Setting = None,
    seed: Annotated[int | None, typer.Option(min=0, help="In place of the configuration's.")] = None,
) -> None:
    """Run every strategy of CONFIG on the same sessions, and write a report folder."""
    with _errors_as_exit():
        fields = _fields(config, setting)
        if seed is not None:
            fields["seed"] = seed
        simulator = Simulator(config_of(fields), config.parent)
        results = _run_all(simulator, simulator.config.name)
        folder = output or Path(simulator.config.name)
        paths = write_report(folder, simulator, results)
        if plots.is_available():
            paths += plots.write_plots(folder, results, slo_s=simulator.config.tpot_slo_s)
        out = _console()
        out.print(table(results, f"{simulator.config.name}: SLO {simulator.config.tpot_slo_s * 1e3:g} ms"))
        out.print(f"{len(paths)} files in {folder}", highlight=False)


@app.command()
def sweep(
    config: _Config,
    *,
    output: _Output = None,
    setting: _Setting = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time. [default: as many as there are cores]")
    ] = None,
) -> None:
    """Run CONFIG under every combination of its section `sweep`, and write one table."""
    with _errors_as_exit():
        fields = _fields(config, setting)
        several = list(combinations(fields))
        rows: list[dict[str, Any]] = []
        runs = run_many(
            [combination for _, combination in several],
            config.parent,
            num_processes=processes or num_cores(),
        )
        with _progress() as progress:
            task = progress.add_task(config.stem, total=len(several))
            for (chosen, _), results in zip(several, runs, strict=True):
                words = ", ".join(f"{name} {value}" for name, value in chosen.items())
                _console().print(table(results, words))
                rows += [{**spread(chosen), **flat(fields_of(result))} for result in results]
                progress.advance(task)
        folder = output or Path(f"{config_of(fields).name}-sweep")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_rows(folder / "sweep.csv", rows)
        except OSError as error:
            raise ConfigurationError(f"{folder}: {error}") from error
        _console().print(f"{len(rows)} rows in {folder / 'sweep.csv'}", highlight=False)


def _fields(config: Path, setting: list[str] | None) -> dict[str, Any]:
    """Return the configuration's settings with those of the command line in their place."""
    fields = parse_mapping(read_text(config))
    for words in setting or []:
        name, equals, text = words.partition("=")
        if not equals:
            raise ConfigurationError(f"--set {words}: needs NAME=VALUE")
        set_setting(fields, name.strip(), parse_mapping(f"value: {text}")["value"])
    return fields


def _run_all(simulator: Simulator, title: str) -> list[Result]:
    with _progress() as progress:
        results = []
        for strategy in simulator.config.strategies:
            task = progress.add_task(f"{title}: {strategy.name}", total=1.0)

            def told(share: float, task: Any = task) -> None:
                progress.update(task, completed=share)

            results.append(simulator.run(strategy, told))
            progress.update(task, completed=1.0)
    return results


def _progress() -> Progress:
    """Return bars on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_COLUMNS)


@contextmanager
def _errors_as_exit() -> Iterator[None]:
    try:
        yield
    except KernelFlumeError as error:
        Console(stderr=True).print(f"kernelflume: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(EXIT_REFUSED if isinstance(error, ConfigurationError) else EXIT_FAILED)


if __name__ == "__main__":
    app(prog_name="kernelflume sim")
