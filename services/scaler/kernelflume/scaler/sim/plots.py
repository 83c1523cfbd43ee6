"""Plots of a simulation as SVG; they need matplotlib, which the extra `sim` brings.

Each is drawn twice alike: identifiers and dates of the drawing are no part of it.
"""

from __future__ import annotations

import io
import math
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kernelflume.scaler.sim.result import Result

_SETTINGS: Any = {
    "svg.fonttype": "none",  # text stays text: smaller, and in the reader's own font
    "svg.hashsalt": "kernelflume",
    "text.parse_math": False,  # a price is no formula
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}
_HELD, _CAPACITY, _STEP, _SLO = "#4f8fd0", "#d08a2f", "#4f8fd0", "#d05050"
_GROWS, _SHRINKS = "#3f9f5f", "#b070c0"
"""Of about the same lightness, so that they are seen on white and on black."""
_COLOURS = ("#4f8fd0", "#d08a2f", "#3f9f5f", "#d05050", "#8f7fd0", "#a07060", "#d070b0", "#7f8f3f")
_MARKERS = "osD^vPX*"


class Point(NamedTuple):
    """What one strategy comes to in one run."""

    run: str
    """Which combination of a sweep; empty where there is one run."""
    strategy: str
    usd_per_million_tokens: float
    turn_attainment: float


def is_available() -> bool:
    """Tell whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def points_of(results: Sequence[Result], run: str = "") -> list[Point]:
    """Return what the plots of costs show of results."""
    return [
        Point(run, result.strategy, result.usd_per_million_tokens, result.turn_attainment)
        for result in results
    ]


def draw_run(results: Sequence[Result], *, slo_s: float) -> dict[str, str]:
    """Return the plots of one run as SVG, by the names of their files without ending."""
    drawn = {f"timeline-{result.strategy}": _timeline(result, slo_s) for result in results}
    return drawn | draw_costs(points_of(results))


def draw_costs(points: Sequence[Point]) -> dict[str, str]:
    """Return the plots of costs, of one run or of a whole sweep."""
    return {"cost": _cost_bars(points), "cost-slo": _cost_against_slo(points)}


def _timeline(result: Result, slo_s: float) -> str:
    def draw(figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True)
        samples = result.timeline.samples
        times = [sample.time_s for sample in samples]
        upper.fill_between(
            times, [s.held_tokens / 1e6 for s in samples], step="post", color=_HELD, alpha=0.6, linewidth=0,
            label="held",
        )  # fmt: skip
        upper.step(
            times, [s.capacity_tokens / 1e6 for s in samples], where="post", color=_CAPACITY,
            label="provisioned",
        )  # fmt: skip
        upper.set_ylabel("KV, million tokens")
        upper.set_ylim(bottom=0)
        upper.legend(loc="lower right", ncols=2)
        # Where nothing runs there is no step.
        steps_ms = [s.step_s * 1e3 if s.num_running else math.nan for s in samples]
        lower.plot(times, steps_ms, color=_STEP, linewidth=0.8, label="TPOT")
        lower.axhline(slo_s * 1e3, color=_SLO, linestyle="--", label="SLO")
        _mark_changes(lower, result)
        lower.set(xlabel="seconds", ylabel="ms a token")
        lower.set_ylim(bottom=0)
        lower.legend(loc="lower right", ncols=4)

    return _svg(draw, height=4.8)


def _mark_changes(axes: Axes, result: Result) -> None:
    """Mark scale events; the first of each kind is named in the legend."""
    before, named = 0, set()
    for change in result.timeline.changes:
        kind = "node added" if change.num_nodes >= before else "node gone"
        axes.axvline(
            change.time_s, color=_GROWS if change.num_nodes >= before else _SHRINKS, linewidth=0.8, alpha=0.8,
            label=None if kind in named else kind,
        )  # fmt: skip
        named.add(kind)
        before = change.num_nodes


def _cost_bars(points: Sequence[Point]) -> str:
    runs, strategies = _names(points)
    alone = len(runs) == 1

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        width = 0.8 if alone else 0.8 / len(strategies)
        for place, (strategy, colour) in enumerate(strategies.items()):
            chosen = [point for point in points if point.strategy == strategy]
            shift = (place - (len(strategies) - 1) / 2) * width
            bars = axes.barh(
                [place if alone else runs.index(point.run) + shift for point in chosen],
                [point.usd_per_million_tokens for point in chosen],
                0.9 * width, color=colour, label=strategy,
            )  # fmt: skip
            axes.bar_label(bars, fmt="%.2f", padding=2, fontsize=8)
        names = list(strategies) if alone else runs
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.set_xlabel("$ per million tokens")
        if not alone:
            figure.legend(loc="outside upper center", ncols=3)

    return _svg(draw, height=1.2 + 0.3 * len(points))


def _cost_against_slo(points: Sequence[Point]) -> str:
    _, strategies = _names(points)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for place, (strategy, colour) in enumerate(strategies.items()):
            chosen = [point for point in points if point.strategy == strategy]
            axes.plot(
                [100 * point.turn_attainment for point in chosen],
                [point.usd_per_million_tokens for point in chosen],
                linestyle="", marker=_MARKERS[place % len(_MARKERS)], color=colour, alpha=0.8, label=strategy,
                clip_on=False,
            )  # fmt: skip
        axes.set(xlabel="tokens within the SLO, %", ylabel="$ per million tokens")
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
        figure.legend(loc="outside upper center", ncols=3)

    return _svg(draw, height=4)


def _names(points: Sequence[Point]) -> tuple[list[str], Mapping[str, str]]:
    """Return the runs, and the strategies with a colour each."""
    strategies = list(dict.fromkeys(point.strategy for point in points))
    colours = {name: _COLOURS[place % len(_COLOURS)] for place, name in enumerate(strategies)}
    return list(dict.fromkeys(point.run for point in points)), colours


def _svg(draw: Any, *, height: float) -> str:
    from matplotlib import rc_context  # noqa: PLC0415 - optional
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional

    with rc_context(_SETTINGS):
        figure = Figure(figsize=(6.5, height), layout="constrained")
        draw(figure)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return file.getvalue()
