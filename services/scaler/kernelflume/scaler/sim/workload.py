"""The sessions of a configuration: read or drawn, sliced, and given arrival times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from kernelflume.core.errors import ConfigurationError
from kernelflume.scaler.sim.generator import band, generate
from kernelflume.scaler.sim.readers import read_trace
from kernelflume.scaler.sim.sessions import Session, Turn
from kernelflume.scaler.sim.workload_settings import (
    BatchArrivals,
    BurstArrivals,
    ClosedArrivals,
    GeneratorSource,
    PoissonArrivals,
    TraceArrivals,
    UniformSource,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kernelflume.scaler.sim.workload_settings import Arrivals, TraceSource, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Sessions in order of arrival, and how they arrive."""

    sessions: tuple[Session, ...]
    concurrency: int | None
    """Sessions, or turns, at a time where arrivals are closed; None where each has its own time."""
    admits: Literal["sessions", "turns", "batches"] = "sessions"
    """What there are so many of: open sessions, turns, or sessions that begin together once all are over."""
    num_left_out: int = 0
    """Sessions of the trace that are longer than may be."""

    bound_tokens: int = 0
    """The longest context that the source could have drawn; 0 where it is not known."""

    @property
    def longest_tokens(self) -> int:
        """The longest context that any session may have, whether it was drawn or not."""
        return self.bound_tokens or max((session.peak_tokens for session in self.sessions), default=0)

    @property
    def output_tokens(self) -> int:
        """All that is to be decoded."""
        return sum(session.output_tokens for session in self.sessions)


def build_demand(workload: Workload, *, folder: Path, seed: int) -> Demand:
    """Build the sessions that a configuration asks for; the same seed gives the same ones.

    Args:
        workload: of the configuration.
        folder: that paths are relative to.
        seed: of all draws.

    Raises:
        ConfigurationError: a trace cannot be read, or has no session that may be used.
    """
    lengths, arrivals = (np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(2))
    num_left_out = 0
    if isinstance(workload.source, GeneratorSource):
        sessions: Sequence[Session] = generate(workload.source, lengths)
    elif isinstance(workload.source, UniformSource):
        turn = Turn(workload.source.context_tokens, workload.source.output_tokens)
        sessions = [Session(number, (turn,)) for number in range(workload.source.num_sessions)]
    else:
        everything = read_trace(folder / workload.source.path, workload.source.kind)
        sessions, num_left_out = _selected(everything, workload.source, lengths)
    times = _times(workload.arrivals, sessions, arrivals)
    concurrency, admits = _closed(workload.arrivals)
    return Demand(
        sessions=tuple(
            replace(session, number=number, start_s=float(time))
            for number, (session, time) in enumerate(zip(sessions, times, strict=True))
        ),
        concurrency=concurrency,
        admits=admits,
        num_left_out=num_left_out,
        bound_tokens=_bound_tokens(workload),
    )


def _bound_tokens(workload: Workload) -> int:
    source = workload.source
    if isinstance(source, GeneratorSource):
        return round(source.maximum_context_tokens * source.context_scale)
    return 0


def _times(arrivals: Arrivals, sessions: Sequence[Session], random: np.random.Generator) -> list[float]:
    """Return when each session arrives; 0 where they wait for others to end."""
    match arrivals:
        case PoissonArrivals():
            gaps = random.exponential(1 / arrivals.sessions_per_s, len(sessions))
            return [float(time) for time in np.cumsum(gaps)]
        case BurstArrivals():
            # Sessions at an even rate of 1 an arrival, on a clock that runs faster in bursts.
            ticks = np.cumsum(random.exponential(1.0, len(sessions)))
            calm_s = arrivals.period_s - arrivals.burst_s
            calm = arrivals.sessions_per_s * arrivals.period_s / (arrivals.peak * arrivals.burst_s + calm_s)
            in_burst = calm * arrivals.peak * arrivals.burst_s
            a_period = arrivals.sessions_per_s * arrivals.period_s
            periods, rest = np.divmod(ticks, a_period)
            inside = np.where(
                rest < in_burst,
                rest / (calm * arrivals.peak),
                arrivals.burst_s + (rest - in_burst) / calm,
            )
            return [float(time) for time in periods * arrivals.period_s + inside]
        case TraceArrivals():
            return [session.start_s / arrivals.speed for session in sessions]
        case _:
            return [0.0] * len(sessions)


def _closed(arrivals: Arrivals) -> tuple[int | None, Literal["sessions", "turns", "batches"]]:
    match arrivals:
        case ClosedArrivals():
            return arrivals.concurrency, arrivals.counts
        case BatchArrivals():
            return arrivals.size, "batches"
        case _:
            return None, "sessions"


def _selected(
    sessions: Sequence[Session], source: TraceSource, random: np.random.Generator
) -> tuple[list[Session], int]:
    longest = source.maximum_context_tokens
    kept = [session for session in sessions if longest is None or session.peak_tokens <= longest]
    num_left_out = len(sessions) - len(kept)
    if source.dynamics is not None and kept:
        by_length = sorted(kept, key=lambda session: (session.peak_tokens, session.number))
        low, high = band(source.dynamics)
        inside = by_length[int(low * len(kept)) : max(int(high * len(kept)), int(low * len(kept)) + 1)]
        kept = sorted(inside, key=lambda session: session.number)
    if source.limit is not None and source.limit < len(kept):
        chosen = sorted(random.choice(len(kept), source.limit, replace=False).tolist())
        kept = [kept[index] for index in chosen]
    if not kept:
        raise ConfigurationError(f"{source.path}: no session is left")
    return kept, num_left_out
