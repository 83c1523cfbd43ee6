"""The sessions of a configuration: read or drawn, sliced, and given arrival times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kernelflume.core.errors import ConfigurationError
from kernelflume.scaler.sim.config import ClosedArrivals, GeneratorSource, PoissonArrivals, TraceArrivals
from kernelflume.scaler.sim.generator import band, generate
from kernelflume.scaler.sim.readers import read_trace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kernelflume.scaler.sim.config import TraceSource, Workload
    from kernelflume.scaler.sim.sessions import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Sessions in order of arrival, and how they arrive."""

    sessions: tuple[Session, ...]
    concurrency: int | None
    """Sessions at a time where arrivals are closed; None where each has its own time."""
    num_left_out: int = 0
    """Sessions of the trace that are longer than may be."""

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
    else:
        everything = read_trace(folder / workload.source.path, workload.source.kind)
        sessions, num_left_out = _selected(everything, workload.source, lengths)
    if isinstance(workload.arrivals, PoissonArrivals):
        gaps = arrivals.exponential(1 / workload.arrivals.sessions_per_s, len(sessions))
        times = np.cumsum(gaps).tolist()
    elif isinstance(workload.arrivals, TraceArrivals):
        times = [session.start_s / workload.arrivals.speed for session in sessions]
    else:
        times = [0.0] * len(sessions)
    return Demand(
        sessions=tuple(
            replace(session, number=number, start_s=float(time))
            for number, (session, time) in enumerate(zip(sessions, times, strict=True))
        ),
        concurrency=workload.arrivals.concurrency if isinstance(workload.arrivals, ClosedArrivals) else None,
        num_left_out=num_left_out,
    )


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
