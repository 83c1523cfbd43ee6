"""`kernelflume sim`: what a workload would cost, by strategy (`python -m kernelflume.scaler.sim`)."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from kernelflume.core.errors import ConfigurationError, KernelFlumeError
from kernelflume.runtime.service import EXIT_FAILED, EXIT_REFUSED
from kernelflume.runtime.yamltext import parse_mapping
from kernelflume.scaler.sim.bars import bars
from kernelflume.scaler.sim.calibration import EVERYTHING, FITTED, JUDGED, calibrate
from kernelflume.scaler.sim.config import config_of, read_text
from kernelflume.scaler.sim.recordings import read_recording
from kernelflume.scaler.sim.replay import MEASURED, replay
from kernelflume.scaler.sim.report import sweep_table, swept_of, table
from kernelflume.scaler.sim.report_folder import missing, write_report, write_sweep
from kernelflume.scaler.sim.runs import num_cores, run_many, run_one
from kernelflume.scaler.sim.simulation import Simulator
from kernelflume.scaler.sim.sweep import combinations, set_setting
from kernelflume.scaler.sim.validation import compare, validation_table

if TYPE_CHECKING:
    from collections.abc import Iterator


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
        with bars(simulator.config.name, 1) as shown:
            results = shown.run_all(simulator)
        folder = output or Path(simulator.config.name)
        paths = write_report(folder, simulator, results)
        _console().print(
            table(results, f"{simulator.config.name}: SLO {simulator.config.tpot_slo_s * 1e3:g} ms")
        )
        _tell_files(folder, len(paths))


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
        runs = run_many(
            [combination for _, combination in several],
            config.parent,
            num_processes=processes or num_cores(),
            task=run_one,
        )
        swept = []
        with bars(config.stem, len(several)) as shown:
            for (chosen, _), (facts, results) in zip(several, runs, strict=True):
                swept.append(swept_of(chosen, facts, results))
                shown.advance()
        folder = output or Path(f"{config_of(fields).name}-sweep")
        paths = write_sweep(folder, fields, swept)
        _console().print(sweep_table(swept, f"{config_of(fields).name}: {len(swept)} combinations"))
        _tell_files(folder, len(paths))


@app.command()
def validate(
    recording: Annotated[
        Path, typer.Argument(help="Folder that `kernelflume bench --record` made.", metavar="RECORDING")
    ],
    *,
    tolerance: Annotated[
        float, typer.Option(min=0, max=100, help="Percent by which a judged figure may be off.")
    ] = 10.0,
    calibrate_by: Annotated[
        Path | None,
        typer.Option(
            help="Fit two figures to another recording of the same minutes, in place of what the profile "
            "says; or, where this is RECORDING again, to every second request: then the others are judged.",
            metavar="FOLDER",
        ),
    ] = None,
    weight_node_price: Annotated[
        float | None, typer.Option(min=0, help="Of the weight node, an hour. [default: an attention node's]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Replay a run that was recorded live, and compare.

    Exit code 0: p99 TPOT, node-seconds and cost are within the tolerance. 1: one is not. 2: no recording.
    """
    with _errors_as_exit():
        recorded = read_recording(recording)
        judged, fit = EVERYTHING, None
        if calibrate_by is not None and calibrate_by.resolve() == recording.resolve():
            judged, fit = JUDGED, calibrate(recorded, FITTED)
        elif calibrate_by is not None:
            fit = calibrate(read_recording(calibrate_by))
        calibration = fit.calibration if fit is not None else MEASURED
        validation = compare(
            recorded,
            replay(recorded, calibration),
            tolerance=tolerance / 100,
            weight_node_price=weight_node_price,
            fit=fit,
            judged=judged,
        )
        if as_json:
            typer.echo(json.dumps(validation.to_dict(), indent=2))
        else:
            _console().print(validation_table(validation))
    if not validation.is_valid:
        raise typer.Exit(EXIT_FAILED)


def _tell_files(folder: Path, num_files: int) -> None:
    _console().print(f"{num_files} files in {folder}", highlight=False)
    if (lacking := missing()) is not None:
        Console(stderr=True).print(lacking, markup=False, highlight=False, soft_wrap=True)


def _fields(config: Path, setting: list[str] | None) -> dict[str, Any]:
    """Return the configuration's settings with those of the command line in their place."""
    fields = parse_mapping(read_text(config))
    for words in setting or []:
        name, equals, text = words.partition("=")
        if not equals:
            raise ConfigurationError(f"--set {words}: needs NAME=VALUE")
        set_setting(fields, name.strip(), parse_mapping(f"value: {text}")["value"])
    return fields


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
