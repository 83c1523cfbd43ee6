"""Whether a claim is met: computed from our figures and the range of the paper. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from benchmarks.reproduction.figures import measured, simulated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.reproduction.claims import Claim, Claims


class Verdict(StrEnum):
    """What is said of a claim."""

    REPRODUCED = "reproduced"
    ASSUMED = "reproduced only under an assumption"
    MISSED = "not reproduced"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Trial:
    """The figures under one combination of assumptions."""

    experiment: str
    settings: dict[str, Any]
    instead: str
    """Words for the strategies that stand for others; of none, for those themselves."""
    values: tuple[float, ...]
    miss: float
    """How far the worst value is out of the claim's range, as a share of its bound; 0 where none is."""

    @property
    def holds(self) -> bool:
        """Whether the claim is met."""
        return self.miss == 0


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim with our figures."""

    claim: Claim
    values: tuple[float, ...]
    verdict: Verdict
    trials: tuple[Trial, ...] = ()


def judge(claims: Claims, grid: Mapping[str, Any]) -> list[Judged]:
    """Judge all claims by the rows of the experiments."""
    return [_judge(claim, claims, grid) for claim in claims.claims]


def holds(claim: Claim, values: Sequence[float], tolerance: float) -> bool:
    """Tell whether all values are within the claim's range, widened by the tolerance.

    The tolerance is a share of the figure; of a cut it is a share of the cost that is left, which is what was
    simulated.
    """
    return miss(claim, values, tolerance) == 0


def miss(claim: Claim, values: Sequence[float], tolerance: float) -> float:
    """Return how far the worst value is out of the widened range, as a share of the bound; 0 if none is."""
    share = claim.tolerance if claim.tolerance is not None else tolerance
    is_cut = claim.simulated is not None and claim.simulated.kind == "cut"
    low, high = claim.low, claim.high
    if is_cut:
        values = [100 - value for value in values]
        low, high = _left(claim.high), _left(claim.low)
    # An allowance for what floating point adds, so that a range may end at the figure itself.
    below = [(low * (1 - share) - 1e-9 - value) / (low or 1) for value in values] if low is not None else []
    above = (
        [(value - high * (1 + share) - 1e-9) / (high or 1) for value in values] if high is not None else []
    )
    return max(0.0, *below, *above)


def _left(cut: float | None) -> float | None:
    return None if cut is None else 100 - cut


def _judge(claim: Claim, claims: Claims, grid: Mapping[str, Any]) -> Judged:
    if claim.measured is not None:
        values = tuple(measured(claim.measured))
        met = holds(claim, values, claims.tolerance)
        return Judged(claim, values, Verdict.REPRODUCED if met else Verdict.MISSED)
    if claim.simulated is None:
        return Judged(claim, (), Verdict.NOT_MEASURED)
    values = tuple(simulated(claim.simulated, grid[claim.simulated.experiment]))
    if holds(claim, values, claims.tolerance):
        return Judged(claim, values, Verdict.REPRODUCED)
    trials = tuple(trial for name in claim.swept for trial in _trials(claim, name, claims, grid))
    met = any(trial.holds for trial in trials)
    return Judged(claim, values, Verdict.ASSUMED if met else Verdict.MISSED, trials)


def _trials(claim: Claim, name: str, claims: Claims, grid: Mapping[str, Any]) -> list[Trial]:
    """Return the figures under each combination of what the claim's own experiment does not sweep."""
    figure = claim.simulated
    assert figure is not None
    common = grid[figure.experiment][0]["settings"]
    groups: dict[str, tuple[dict[str, Any], list[Any]]] = {}
    for row in grid[name]:
        settings = {key: value for key, value in row["settings"].items() if key not in common}
        groups.setdefault(repr(settings), (settings, []))[1].append(row)
    trials = []
    present = {result["strategy"] for result in grid[name][0]["results"]}
    for settings, rows in groups.values():
        for words, instead in {claim.itself: {}, **claim.instead}.items():
            replaced = figure.model_copy(
                update={
                    "strategy": instead.get(figure.strategy, figure.strategy),
                    "than": tuple(instead.get(other, other) for other in figure.than),
                }
            )
            if not {replaced.strategy, *replaced.than} <= present:
                continue
            values = tuple(simulated(replaced, rows))
            trials.append(Trial(name, settings, words, values, miss(claim, values, claims.tolerance)))
    return trials
