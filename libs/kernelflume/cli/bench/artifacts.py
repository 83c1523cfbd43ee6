"""The files of a run: result, a row a request, and a picture."""

from __future__ import annotations

import csv
import json
from dataclasses import fields
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from kernelflume.cli.bench.classes import ClassRule, ClassSource
from kernelflume.cli.bench.outcome import Outcome
from kernelflume.cli.bench.plot import write_plot
from kernelflume.core.errors import ConfigurationError
from kernelflume.core.request_class import ClassBounds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

RESULT = "result.json"
REQUESTS = "requests.csv"
PLOT = "plot.png"


def prepare_folder(folder: Path, flag: str = "--output-dir") -> None:
    """Make the folder of ``flag`` before the run, so that a run does not end without a place for its result.

    Raises:
        ConfigurationError: it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigurationError(f"{flag} {folder}: {error.strerror or error}") from error


def write_artifacts(folder: Path, result: dict[str, Any], outcomes: Sequence[Outcome]) -> list[str]:
    """Write the files and return what could not be made, in words.

    Raises:
        ConfigurationError: a file cannot be written.
    """
    own = result["kernelflume"]
    rule = ClassRule(ClassBounds(own["warm_tokens"], own["heavy_tokens"]), ClassSource(own["classes_by"]))
    try:
        (folder / RESULT).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        _write_requests(folder / REQUESTS, outcomes, rule)
        write_plot(
            folder / PLOT, outcomes, rule, f"{result['label'] or result['model_id']}: {own['workload']}"
        )
    except ImportError:
        return [f"no {PLOT}: matplotlib is not installed (pip install 'kernelflume[bench]')"]
    except OSError as error:
        raise ConfigurationError(f"--output-dir {folder}: {error.strerror or error}") from error
    return []


def _write_requests(path: Path, outcomes: Sequence[Outcome], rule: ClassRule) -> None:
    names = [field.name for field in fields(Outcome)]
    with path.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened)
        writer.writerow([*names, "tpot_s", "class"])
        for outcome in sorted(outcomes, key=lambda each: each.sent_s):
            values = [getattr(outcome, name) for name in names]
            writer.writerow([*values, outcome.tpot_s, rule.class_of(outcome).name])
