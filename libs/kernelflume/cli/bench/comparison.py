"""Two results side by side."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from kernelflume.cli.bench.report import FIGURES, number
from kernelflume.cli.tables import UNKNOWN, table
from kernelflume.core.errors import ConfigurationError
from kernelflume.core.figures import is_number
from kernelflume.runtime.smallfile import read_small_file

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

_MAX_BYTES = 256 * 1024 * 1024
_TOTALS = (
    "completed",
    "failed",
    "duration",
    "request_throughput",
    "output_throughput",
    "total_token_throughput",
)
_CLASS_FIGURES = ("ttft_p50_s", "ttft_p90_s", "tpot_p90_s", "e2e_p50_s")
_OWN = ("prefix_hit", "infinite_cache_hit", "imbalance_utilisation", "imbalance_computed_tokens")


def read_result(path: Path) -> dict[str, Any]:
    """Return a result, ours or one of `vllm bench serve`.

    Raises:
        ConfigurationError: the file cannot be read or holds no result.
    """
    try:
        result = json.loads(read_small_file(path, max_bytes=_MAX_BYTES))
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    except ValueError as error:
        raise ConfigurationError(f"{path}: no JSON: {error}") from error
    except RecursionError as error:
        raise ConfigurationError(f"{path}: no result of a benchmark: nested too deeply") from error
    if not isinstance(result, dict) or not isinstance(result.get("completed"), int):
        raise ConfigurationError(f"{path}: no result of a benchmark")
    return result


def compare_files(first: Path, second: Path) -> Table:
    """Return the table of two files of results.

    Raises:
        ConfigurationError: one cannot be read.
    """
    return compare((str(first), str(second)), (read_result(first), read_result(second)))


def compare(names: tuple[str, str], results: tuple[dict[str, Any], dict[str, Any]]) -> Table:
    """Return a table of the figures that either result has, with the change from the first to the second."""
    before, after = (_figures(result) for result in results)
    rows = table("figure", *(f">{escape(name)}" for name in names), ">change")
    for name in before | after:
        first, second = before.get(name), after.get(name)
        if first is not None or second is not None:
            rows.add_row(escape(name), number(first, 4), number(second, 4), _change(first, second))
    return rows


def _figures(result: dict[str, Any]) -> dict[str, float | None]:
    kinds = ("mean", "median", "p90", "p99")
    names = [*_TOTALS, *(f"{kind}_{figure}_ms" for figure in FIGURES for kind in kinds)]
    figures = {name: _number(result.get(name)) for name in names}
    own = result.get("kernelflume")
    if isinstance(own, dict):
        figures |= {name: _number(own.get(name)) for name in _OWN}
        for group, line in _object(own.get("classes")).items():
            figures |= {f"{group} {name}": _number(_object(line).get(name)) for name in _CLASS_FIGURES}
    return figures


def _number(value: Any) -> float | None:
    if not is_number(value):
        return None
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return None


def _object(value: Any) -> dict[str, Any]:
    """Return a JSON object as it is, and an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def _change(first: float | None, second: float | None) -> str:
    return f"{100 * (second - first) / first:+.1f} %" if first and second is not None else UNKNOWN
