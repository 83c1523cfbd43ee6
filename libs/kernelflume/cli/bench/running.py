"""Running a benchmark from the command line: its result is shown, its files and its recording are written."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from kernelflume.cli.bench.artifacts import prepare_folder, write_artifacts
from kernelflume.cli.bench.benchmark import BenchSettings, run_benchmark
from kernelflume.cli.bench.recorder import RunRecorder, read_profile, write_recording
from kernelflume.cli.bench.report import render
from kernelflume.cli.output import output_console
from kernelflume.cli.supervisor import StackInterruptedError
from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from kernelflume.rpc.channel import Channels


def prepare_recorder(folder: Path, profile: Path | None, scaler: str, channels: Channels) -> RunRecorder:
    """Return a recorder, once what it needs is there: a run must not end without the recording asked for.

    Raises:
        ConfigurationError: no profile was named or it is none, or the folder cannot be written.
    """
    if profile is None:
        raise ConfigurationError("--record needs --profile: the simulator knows this machine by it")
    measured = read_profile(profile)
    prepare_folder(folder, "--record")
    return RunRecorder(scaler, channels, measured)


def run_and_show(
    settings: BenchSettings,
    output_dir: Path | None,
    record: Path | None,
    recorder: RunRecorder | None,
    *,
    as_json: bool,
) -> dict[str, Any]:
    """Run a benchmark, show its result, write its files, and return the result.

    Raises:
        KernelFlumeError: it could not be run, recorded or written.
    """
    errors = Console(stderr=True)
    if output_dir is not None:
        prepare_folder(output_dir)
    try:
        result, measured = asyncio.run(run_benchmark(settings, errors, recorder))
    except KeyboardInterrupt:
        raise StackInterruptedError("interrupted before there was a result") from None
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        output_console().print(render(result))
    if output_dir is not None:
        for remark in write_artifacts(output_dir, result, measured.outcomes):
            errors.print(remark, markup=False, highlight=False, soft_wrap=True)
    if record is not None and recorder is not None:
        write_recording(record, recorder.recording(measured, result["kernelflume"]["workload"]))
        errors.print(f"recorded in {record}", markup=False, highlight=False, soft_wrap=True)
    return result
