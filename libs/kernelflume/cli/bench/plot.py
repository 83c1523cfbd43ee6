"""A result as a picture; needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelflume.core.request_class import RequestClass

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from kernelflume.cli.bench.classes import ClassRule
    from kernelflume.cli.bench.outcome import Outcome

_COLOURS = {RequestClass.WARM: "tab:green", RequestClass.MEDIUM: "tab:orange", RequestClass.HEAVY: "tab:red"}


def write_plot(path: Path, outcomes: Sequence[Outcome], rule: ClassRule, title: str) -> None:
    """Draw TTFT and TPOT over the run and as shares, by class.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to import

    figure = Figure(figsize=(12, 8), layout="constrained")
    figure.suptitle(title, parse_math=False)
    axes = figure.subplots(2, 2)
    groups: dict[RequestClass, list[Outcome]] = {each: [] for each in RequestClass}
    for outcome in outcomes:
        if outcome.ok:
            groups[rule.class_of(outcome)].append(outcome)
    for row, (name, attribute) in enumerate((("TTFT", "ttft_s"), ("TPOT", "tpot_s"))):
        for group, members in groups.items():
            points = [
                (outcome.sent_s, value)
                for outcome in members
                if (value := getattr(outcome, attribute)) is not None
            ]
            if points:
                label = f"{group.name} ({len(points)})"
                axes[row][0].plot(*zip(*points, strict=True), ".", color=_COLOURS[group], label=label)
                _draw_shares(axes[row][1], [value for _, value in points], _COLOURS[group], label)
        axes[row][0].set(xlabel="sent after s", ylabel=f"{name} in s", ylim=(0, None))
        axes[row][1].set(xlabel=f"{name} in s", ylabel="share of requests", ylim=(0, 1))
        for drawn in axes[row]:
            drawn.grid(visible=True, alpha=0.3)
            if drawn.get_legend_handles_labels()[0]:
                drawn.legend()
    figure.savefig(path, dpi=120)


def _draw_shares(axes: Axes, values: Sequence[float], colour: str, label: str) -> None:
    ordered = sorted(values)
    shares = [(place + 1) / len(ordered) for place in range(len(ordered))]
    axes.step(ordered, shares, where="post", color=colour, label=label)
