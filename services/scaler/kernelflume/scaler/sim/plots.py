"""Plots of a simulation; they need matplotlib, the extra `sim`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from kernelflume.scaler.sim.result import Result


def is_available() -> bool:
    """Tell whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def write_plots(folder: Path, results: Sequence[Result], *, slo_s: float) -> list[Path]:
    """Draw what each strategy did over time, and what each costs; return the files.

    Raises:
        ConfigurationError: the folder cannot be written.
    """
    paths = []
    try:
        for result in results:
            paths.append(folder / f"timeline-{result.strategy}.svg")
            _draw_timeline(paths[-1], result, slo_s)
        paths.append(folder / "cost.svg")
        _draw_cost(paths[-1], results)
    except OSError as error:
        raise ConfigurationError(f"{folder}: {error}") from error
    return paths


def _draw_timeline(path: Path, result: Result, slo_s: float) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional

    figure = Figure(figsize=(9, 6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    samples = result.timeline.samples
    times = [sample.time_s for sample in samples]
    upper.step(times, [s.capacity_tokens / 1e6 for s in samples], where="post", label="provisioned")
    upper.fill_between(times, [s.held_tokens / 1e6 for s in samples], alpha=0.5, label="held")
    upper.set_ylabel("KV, million tokens")
    upper.set_title(f"{result.strategy}: {result.layout}")
    upper.legend(loc="upper right")
    lower.plot(times, [s.step_s * 1e3 for s in samples], linewidth=0.8, label="step")
    lower.axhline(slo_s * 1e3, color="tab:red", linestyle="--", label="SLO")
    _mark_changes(lower, result)
    lower.set_ylabel("time per token, ms")
    lower.set_xlabel("seconds")
    lower.set_ylim(bottom=0)
    lower.legend(loc="upper right")
    figure.savefig(path)


def _mark_changes(axes: Axes, result: Result) -> None:
    before = 0
    for change in result.timeline.changes:
        color = "tab:green" if change.num_nodes >= before else "tab:orange"
        axes.axvline(change.time_s, color=color, linewidth=0.5, alpha=0.5)
        before = change.num_nodes


def _draw_cost(path: Path, results: Sequence[Result]) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional

    figure = Figure(figsize=(1.5 + 1.5 * len(results), 4), layout="constrained")
    axes = figure.subplots()
    names = [result.strategy for result in results]
    bars = axes.bar(names, [result.usd_per_million_tokens for result in results])
    axes.bar_label(
        bars, labels=[f"{100 * result.turn_attainment:.1f} % in SLO" for result in results], fontsize=8
    )
    axes.set_ylabel("$ per million tokens")
    figure.savefig(path)
