"""What a machine's profile does not tell, from another run recorded on it: two figures, fitted to its tokens.

A machine that others use as well is not from one minute to the next what it was when it was profiled: steps
take longer by a factor, and longer with each further node.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from kernelflume.core.errors import ConfigurationError
from kernelflume.scaler.sim.replay import MEASURED, replay

if TYPE_CHECKING:
    from kernelflume.core.recording import Recording
    from kernelflume.scaler.sim.measured_steps import Calibration

_RATIO = 1.2
_FACTORS = tuple(0.8 * _RATIO**power for power in range(8))
_NODE_SHARES = (0.0, 0.2, 0.4, 0.7, 1.0)
_FINER = (-0.5, -0.25, 0.0, 0.25, 0.5)
"""Parts of the distance to the next coarse value that are tried once the best coarse one is known."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A calibration, and how well it makes its own run come out."""

    calibration: Calibration
    error: float
    """Mean distance of the logarithms of simulated and live times of a token, over the requests."""

    def to_dict(self) -> dict[str, float]:
        """Return a JSON-ready form."""
        return {**asdict(self.calibration), "error": self.error}


EVERYTHING = slice(None)
FITTED = slice(0, None, 2)
JUDGED = slice(1, None, 2)
"""Requests of a run that is calibrated by itself: those that it is fitted to are not judged."""


def calibrate(recording: Recording, requests: slice = EVERYTHING) -> Fit:
    """Fit the two figures to a run, by trying them all.

    Args:
        recording: another run than the one that is validated, or that one.
        requests: those whose tokens count; ``FITTED`` for the run that is validated.

    Raises:
        ConfigurationError: it cannot be replayed, or has no request with a second token.
    """
    coarse = (_tried(recording, requests, *values) for values in product(_FACTORS, _NODE_SHARES))
    best = min(coarse, key=lambda fit: fit.error)
    factor, share = best.calibration.step_factor, best.calibration.node_share or 0.0
    finer = (
        _tried(recording, requests, factor * _RATIO**part, max(0.0, share + 0.2 * other))
        for part, other in product(_FINER, _FINER)
    )
    return min((best, *finer), key=lambda fit: fit.error)


def _tried(recording: Recording, requests: slice, step_factor: float, node_share: float) -> Fit:
    calibration = replace(MEASURED, step_factor=step_factor, node_share=node_share)
    done = replay(recording, calibration)
    errors = [
        abs(math.log(replayed.tpot_s / request.tpot_s))
        for request, replayed in zip(recording.requests[requests], done.requests[requests], strict=True)
        if request.tpot_s and replayed.tpot_s
    ]
    if not errors:
        raise ConfigurationError("no request has a second token: there is no time of a token")
    return Fit(calibration, math.fsum(errors) / len(errors))
