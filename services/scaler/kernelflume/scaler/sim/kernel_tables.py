"""Measured kernel times: CSV tables in, times for any size out. Pure but for reading the files.

The tables are those that ai-dynamo/aiconfigurator collects. Between measured sizes it is not the time that is
interpolated but its ratio to a roofline, as that changes slowly where times change by orders of magnitude.
"""

from __future__ import annotations

import csv
import gzip
import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

_FEWEST_POINTS = 3
"""Of one batch size, from which a line is fitted."""


@dataclass(frozen=True, slots=True)
class ScanLine:
    """Attention of one layer: ``start_s`` and then ``bytes_per_s``."""

    start_s: float
    bytes_per_s: float


class GemmTable:
    """Matrix products of one number format: ratios to a roofline on a grid of m, n and k."""

    def __init__(self, path: Path, dtype: str, roofline_s: Callable[[float, float, float], float]) -> None:
        """Read the rows of ``dtype``.

        Raises:
            ConfigurationError: the file cannot be read, or has no row of this format.
        """
        points = {
            (int(row["m"]), int(row["n"]), int(row["k"])): float(row["latency"]) * 1e-3
            for row in _rows(path)
            if row["gemm_dtype"] == dtype
        }
        if not points:
            raise ConfigurationError(f"{path}: no products in {dtype}")
        self._roofline_s = roofline_s
        self._axes = [np.array(sorted({size[axis] for size in points}), dtype=float) for axis in range(3)]
        grid = np.full([len(axis) for axis in self._axes], np.nan)
        for size, seconds in points.items():
            where = tuple(
                int(np.searchsorted(axis, value)) for axis, value in zip(self._axes, size, strict=True)
            )
            grid[where] = math.log(seconds / roofline_s(*map(float, size)))
        # The few largest products were not measured: they are as near the roofline as the rest on the whole.
        grid[np.isnan(grid)] = float(np.nanmedian(grid[-1]))
        self._grid = grid

    def seconds(self, m: float, n: float, k: float) -> float:
        """Return the time of an m x k by k x n product; beyond the grid its edge's ratio counts."""
        ratio: NDArray[np.float64] = self._grid
        for axis, value in zip(self._axes, (m, n, k), strict=True):
            low, share = _place(axis, value)
            ratio = (1 - share) * ratio[low] + share * ratio[min(low + 1, len(axis) - 1)]
        return self._roofline_s(m, n, k) * math.exp(float(ratio))


class AttentionTable:
    """Decode attention: for each head geometry and batch a line over the bytes read."""

    def __init__(self, path: Path) -> None:
        """Read and fit all rows.

        Raises:
            ConfigurationError: the file cannot be read.
        """
        points: dict[tuple[int, int, int], dict[int, list[tuple[float, float]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for row in _rows(path):
            batch, kv_heads, head_dim = (
                int(row["batch_size"]),
                int(row["num_key_value_heads"]),
                int(row["head_dim"]),
            )
            read_bytes = 4.0 * batch * (int(row["isl"]) + int(row["step"])) * kv_heads * head_dim
            points[int(row["num_heads"]), kv_heads, head_dim][batch].append(
                (read_bytes, float(row["latency"]) * 1e-3)
            )
        self._lines = {
            heads: [
                (batch, _fit(measured))
                for batch, measured in sorted(batches.items())
                if len(measured) >= _FEWEST_POINTS
            ]
            for heads, batches in points.items()
        }

    def line(self, batch: float, query_heads: int, kv_heads: int, head_dim: int) -> ScanLine | None:
        """Return the line of this geometry, or of the nearest number of query heads; None without one."""
        near = [heads for heads in self._lines if heads[1:] == (kv_heads, head_dim) and self._lines[heads]]
        if not near:
            return None
        nearest = min(near, key=lambda heads: (abs(math.log(heads[0] / query_heads)), heads))
        lines = self._lines[nearest]
        low, share = _place(np.array([float(size) for size, _ in lines]), batch)
        first, second = lines[low][1], lines[min(low + 1, len(lines) - 1)][1]
        return ScanLine(
            start_s=(1 - share) * first.start_s + share * second.start_s,
            bytes_per_s=1 / ((1 - share) / first.bytes_per_s + share / second.bytes_per_s),
        )


class AllReduceTable:
    """All-reduce inside a captured graph, by the number of GPUs."""

    def __init__(self, path: Path) -> None:
        """Read the rows that were captured.

        Raises:
            ConfigurationError: the file cannot be read.
        """
        points: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for row in _rows(path):
            if row["kernel_source"].endswith("_graph"):
                points[int(row["num_gpus"])].append(
                    (float(row["message_size"]), float(row["latency"]) * 1e-3)
                )
        self._points = {num_gpus: sorted(measured) for num_gpus, measured in points.items()}

    def seconds(self, num_gpus: int, num_bytes: float) -> float | None:
        """Return the time of one all-reduce, or None where that number of GPUs was not measured."""
        measured = self._points.get(num_gpus)
        if measured is None:
            return None
        sizes = np.log([size for size, _ in measured])
        return float(
            np.exp(np.interp(math.log(max(1.0, num_bytes)), sizes, np.log([s for _, s in measured])))
        )


def _fit(measured: list[tuple[float, float]]) -> ScanLine:
    """Fit a line with the least relative error; neither of its figures is ever negative."""
    sizes, seconds = (np.array(column) for column in zip(*measured, strict=True))
    weights = 1 / seconds
    matrix = np.stack([weights, sizes * weights], axis=1)
    (start_s, slope), *_ = np.linalg.lstsq(matrix, np.ones_like(seconds), rcond=None)
    if slope <= 0:
        slope = float(np.median(seconds / sizes))
    return ScanLine(max(0.0, float(start_s)), 1 / float(slope))


def _place(axis: NDArray[np.float64], value: float) -> tuple[int, float]:
    """Return between which points of an axis a value lies, and how far along, on a logarithmic scale."""
    if value <= axis[0] or len(axis) == 1:
        return 0, 0.0
    if value >= axis[-1]:
        return len(axis) - 1, 0.0
    low = int(np.searchsorted(axis, value, side="right")) - 1
    return low, math.log(value / axis[low]) / math.log(axis[low + 1] / axis[low])


def _rows(path: Path) -> Iterator[dict[str, str]]:
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8") as lines
        ):
            yield from csv.DictReader(lines)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
