"""A recorded run beside its replay: figures, errors, and the verdict. Pure."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from kernelflume.core.errors import ConfigurationError
from kernelflume.scaler.scaling_policy import ScalingPolicy
from kernelflume.scaler.sim.calibration import EVERYTHING
from kernelflume.scaler.sim.node_spans import most_at_once, node_spans

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kernelflume.core.recording import Recording
    from kernelflume.scaler.sim.calibration import Fit
    from kernelflume.scaler.sim.replay import Replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of both."""

    name: str
    unit: str
    live: float
    simulated: float
    is_judged: bool = False
    """Counts for the verdict."""

    @property
    def error(self) -> float | None:
        """How far the simulated figure is off, as a share of the live one; None where that is 0."""
        return self.simulated / self.live - 1 if self.live else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """All figures, and how far the judged ones may be off."""

    workload: str
    created: str
    hardware: str
    tolerance: float
    figures: tuple[Figure, ...]
    fit: Fit | None = None
    """How the profile was calibrated; None where it counts as it is."""

    @property
    def is_valid(self) -> bool:
        """True when no judged figure is off by more than the tolerance."""
        return all(
            figure.error is not None and abs(figure.error) <= self.tolerance
            for figure in self.figures
            if figure.is_judged
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return {
            "workload": self.workload,
            "created": self.created,
            "hardware": self.hardware,
            "tolerance": self.tolerance,
            "valid": self.is_valid,
            "calibration": self.fit.to_dict() if self.fit is not None else None,
            "figures": [{**asdict(figure), "error": figure.error} for figure in self.figures],
        }


def compare(
    recording: Recording,
    replay: Replay,
    *,
    tolerance: float,
    weight_node_price: float | None = None,
    fit: Fit | None = None,
    judged: slice = EVERYTHING,
) -> Validation:
    """Set a recorded run beside its replay.

    Args:
        recording: the live run.
        replay: of it.
        tolerance: share by which a judged figure may be off.
        weight_node_price: an hour of the weight node; None takes an attention node's.
        fit: how the profile was calibrated for it.
        judged: requests whose times count; node-seconds and cost are of all.

    Raises:
        ConfigurationError: no request has a second token.
    """
    spans = node_spans(recording)
    # A policy without prices has them at 0: then node-hours are the cost.
    node_price = ScalingPolicy.parse(recording.policy).node_cost_per_hour or 1.0
    weight_price = node_price if weight_node_price is None else weight_node_price
    live_tpots = _tpots(request.tpot_s for request in recording.requests[judged])
    tpots = _tpots(request.tpot_s for request in replay.requests[judged])
    waits = [request.first_token_s - request.sent_s for request in recording.requests[judged]]
    replayed_waits = [
        replayed.first_token_s - request.sent_s
        for replayed, request in zip(replay.requests[judged], recording.requests[judged], strict=True)
    ]
    node_seconds = math.fsum(span.seconds for span in spans)

    def cost(attention_s: float, weight_s: float) -> float:
        return (attention_s * node_price + weight_s * weight_price) / 3600

    return Validation(
        workload=recording.workload,
        created=recording.created,
        hardware=recording.profile.hardware,
        tolerance=tolerance,
        fit=fit,
        figures=(
            _figure("TPOT p99", "ms", 1e3 * _at(live_tpots, 99), 1e3 * _at(tpots, 99), is_judged=True),
            _figure("node-seconds", "s", node_seconds, replay.node_seconds, is_judged=True),
            _figure(
                "cost",
                "",
                cost(node_seconds, recording.duration_s),
                cost(replay.node_seconds, replay.duration_s),
                is_judged=True,
            ),
            _figure("TPOT p50", "ms", 1e3 * _at(live_tpots, 50), 1e3 * _at(tpots, 50)),
            _figure("TTFT p50", "ms", 1e3 * _at(waits, 50), 1e3 * _at(replayed_waits, 50)),
            _figure("duration", "s", recording.duration_s, replay.duration_s),
            _figure("most nodes", "", most_at_once(spans), replay.most_nodes),
        ),
    )


def validation_table(validation: Validation) -> Table:
    """Return the figures as a table, the judged ones marked."""
    title = f"{validation.workload}, recorded {validation.created} on {validation.hardware}"
    if validation.fit is not None:
        found = validation.fit.calibration
        share = 100 * (found.node_share or 0.0)
        title += f"; steps times {found.step_factor:.2f}, {share:.0f} % for each further node"
    table = Table(title=title, title_justify="left")
    for name in ("", "live", "simulated", "error", f"within {100 * validation.tolerance:g} %"):
        table.add_column(name, justify="left" if not name else "right")
    for figure in validation.figures:
        error = figure.error
        inside = error is not None and abs(error) <= validation.tolerance
        unit = f", {figure.unit}" if figure.unit else ""
        table.add_row(
            f"{figure.name}{unit}",
            f"{figure.live:.4g}",
            f"{figure.simulated:.4g}",
            "-" if error is None else f"{100 * error:+.1f} %",
            ("yes" if inside else "NO") if figure.is_judged else "",
        )
    return table


def _figure(name: str, unit: str, live: float, simulated: float, *, is_judged: bool = False) -> Figure:
    return Figure(name=name, unit=unit, live=float(live), simulated=float(simulated), is_judged=is_judged)


def _tpots(values: Iterable[float | None]) -> list[float]:
    found = [value for value in values if value is not None]
    if not found:
        raise ConfigurationError("no request has a second token: there is no time of a token")
    return found


def _at(values: list[float], percent: float) -> float:
    return float(np.percentile(values, percent))
