"""The section `workload` of a configuration: which sessions there are, and when they come."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - pydantic reads the annotations
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from kernelflume.scaler.sim.section import Count, Dynamics, Positive, Seconds, Section


class TraceSource(Section):
    """Sessions of a trace file, plain or gzipped."""

    kind: Literal["sessions", "mooncake", "azure"]
    """`sessions`: one JSON object a session with its requests; `mooncake`: one JSON object a request;
    `azure`: a CSV with TIMESTAMP, ContextTokens, GeneratedTokens."""
    path: Path
    """Relative to the configuration's folder."""
    dynamics: Dynamics | None = None
    """Only sessions of this slice of the lengths; all of them if unset."""
    limit: Count | None = None
    """So many sessions, drawn by the seed; all of them if unset."""
    maximum_context_tokens: Count | None = None
    """Leave out sessions that ever hold more."""


class GeneratorSource(Section):
    """Sessions drawn from the published statistics of the paper's trace."""

    kind: Literal["generator"] = "generator"
    dynamics: Dynamics = "high"
    num_sessions: Annotated[int, Field(ge=0, le=1_000_000)] = 100
    maximum_context_tokens: Count = 273_000
    """Where lengths are cut: the longest of the paper's trace."""
    context_scale: Positive = 1.0
    """All lengths times this, for projections to longer contexts."""


class UniformSource(Section):
    """Sessions of one turn and one length: contexts that grow together, as in measurements of one kernel."""

    kind: Literal["uniform"]
    num_sessions: Count = 1
    context_tokens: Annotated[int, Field(ge=1)]
    """Of the prompt."""
    output_tokens: Annotated[int, Field(ge=1)]


class ClosedArrivals(Section):
    """So many at any time: the next one begins when one ends."""

    kind: Literal["closed"] = "closed"
    concurrency: Count = 32
    counts: Literal["sessions", "turns"] = "sessions"
    """What there are so many of: open sessions, those whose client thinks included; or turns, so that another
    session goes on or begins while a client thinks and the batch stays full."""


class BatchArrivals(Section):
    """So many sessions begin together; the next ones begin when all of them are over."""

    kind: Literal["batches"]
    size: Count = 32


class PoissonArrivals(Section):
    """Sessions arrive at random, independently of each other."""

    kind: Literal["poisson"]
    sessions_per_s: Positive


class BurstArrivals(Section):
    """Sessions arrive at random at a rate that is higher at the beginning of each period."""

    kind: Literal["bursts"]
    sessions_per_s: Positive
    """Mean over a period."""
    peak: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 5.0
    """The rate in a burst over the one between bursts."""
    burst_s: Positive = 60.0
    period_s: Positive = 300.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.burst_s >= self.period_s:
            raise ValueError(f"burst_s {self.burst_s:g} is not below period_s {self.period_s:g}")
        return self


class TraceArrivals(Section):
    """Sessions arrive when the trace says."""

    kind: Literal["trace"]
    speed: Positive = 1.0
    """Times are divided by it."""


Source = Annotated[TraceSource | GeneratorSource | UniformSource, Field(discriminator="kind")]
Arrivals = Annotated[
    ClosedArrivals | BatchArrivals | PoissonArrivals | BurstArrivals | TraceArrivals,
    Field(discriminator="kind"),
]


class CacheSettings(Section):
    """A pool that keeps KV after its turn, outside of the nodes: least recently used goes first."""

    capacity_gb: Positive
    fetch_gb_per_s: Positive | None = None
    """How fast what it has comes to the nodes; unset: at once."""
    usd_per_gb_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Paid for all of its capacity from beginning to end."""
    source: Annotated[str, Field(min_length=1)]
    """Where the price is from."""


class Workload(Section):
    """What is decoded, and when."""

    source: Source = GeneratorSource()
    arrivals: Arrivals = ClosedArrivals()
    least_step_s: Seconds = 0.0
    """No step takes less, as where clients read no faster: all strategies then decode at one pace, and cost
    is a matter of GPUs alone; 0: each as fast as it can."""
    keep_between_turns: bool = True
    """KV of a session stays where it is while the client thinks; false drops it after each turn."""
    think: bool = False
    """Wait between turns as the trace says; false lets turns follow at once."""
    prefill_tokens_per_s: Positive | None = None
    """How fast tokens that are not held yet become KV, elsewhere and not billed; unset: at once."""
    prefix_cache: CacheSettings | None = None
    """Where turns find what others have computed; unset: nothing is found but what nodes still hold."""
    least_duration_s: Seconds = 0.0
    """Bill at least so long, whatever the workload."""
