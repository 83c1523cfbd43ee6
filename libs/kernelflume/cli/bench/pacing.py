"""When sessions begin."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from kernelflume.cli.bench.workload import num_turns

if TYPE_CHECKING:
    from kernelflume.cli.bench.workload import Session


class Pace(StrEnum):
    """What makes a turn due that is not its session's first."""

    ARRIVALS = "arrivals"
    """The trace's own time since the session's start, if the turn before has ended by then."""
    THINK = "think"
    """The end of the turn before, and its think time."""


def start_times(
    sessions: tuple[Session, ...], *, request_rate: float | None, seed: int
) -> tuple[float, ...] | None:
    """Return when each session begins, in seconds; None when the end of one begins the next.

    Args:
        sessions: those of the run.
        request_rate: requests a second, a session counting as many as it has on average: sessions arrive as a
            Poisson process of that rate; infinite begins them all at once; None takes the trace's times.
        seed: of the process.
    """
    if request_rate is not None:
        if math.isinf(request_rate):
            return (0.0,) * len(sessions)
        mean_gap_s = num_turns(sessions) / len(sessions) / request_rate
        gaps = np.random.default_rng([seed, len(sessions)]).exponential(mean_gap_s, len(sessions))
        return tuple(np.concatenate([[0.0], np.cumsum(gaps)[:-1]]).tolist())
    arrivals = [session.arrival_s for session in sessions if session.arrival_s is not None]
    if len(arrivals) < len(sessions):
        return None
    return tuple(arrival - min(arrivals) for arrival in arrivals)
