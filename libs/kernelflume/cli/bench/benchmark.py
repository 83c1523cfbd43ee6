"""One benchmark from its settings to its result."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelflume.cli.bench.endpoint import Endpoint, ServedModel, Target
from kernelflume.cli.bench.fitting import Fitting, fit
from kernelflume.cli.bench.formats import TraceFormat, read_trace
from kernelflume.cli.bench.generated import SessionShape, generate_sessions
from kernelflume.cli.bench.load import Asking, Load
from kernelflume.cli.bench.pacing import Pace, start_times
from kernelflume.cli.bench.progress import RunProgress
from kernelflume.cli.bench.results import RunFacts, result_of
from kernelflume.cli.bench.schedule import Schedule
from kernelflume.cli.bench.tokens import TokenSource
from kernelflume.cli.bench.warmup import warm_up
from kernelflume.cli.bench.workload import num_turns
from kernelflume.core.errors import UnavailableError
from kernelflume.runtime.clock import MonotonicClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from kernelflume.cli.bench.classes import ClassSource
    from kernelflume.cli.bench.dialogue import Api
    from kernelflume.cli.bench.load import Measured
    from kernelflume.cli.bench.recorder import RunRecorder
    from kernelflume.cli.bench.workload import Session

GENERATED = "generated"
_MODELS_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What a person asked for."""

    workload: str
    """A trace file, or ``generated``."""
    trace_format: TraceFormat | None
    shape: SessionShape
    target: Target
    base_url: str
    model: str | None
    asking: Asking
    """Its model is replaced by the one that is served."""
    fitting: Fitting
    """Its longest context is the endpoint's where none is given."""
    pace: Pace | None
    request_rate: float | None
    active_sessions: int
    max_concurrency: int | None
    num_warmups: int
    seed: int
    token_ids: tuple[int, int]
    warm_tokens: float
    heavy_tokens: float
    classes_by: ClassSource | None
    label: str
    keeps_details: bool
    shown: dict[str, Any]
    """The settings as they stand in the result."""

    @property
    def api(self) -> Api:
        """Which endpoint is asked."""
        return self.asking.api


async def run_benchmark(
    settings: BenchSettings, console: Console, recorder: RunRecorder | None = None
) -> tuple[dict[str, Any], Measured]:
    """Run it and return its result, and what was measured. Ctrl-C ends it with what there is.

    Args:
        settings: what to do.
        console: for the progress.
        recorder: looks at the scaler while the load is on.

    Raises:
        ConfigurationError: the workload cannot be read, or does not fit.
        UnavailableError: nothing serves there, or not this model.
    """
    sessions = _sessions(settings)
    endpoint = Endpoint(settings.target)
    try:
        model = _chosen(await endpoint.models(timeout_s=_MODELS_TIMEOUT_S), settings.model)
        workload = fit(sessions, _fitting(settings, model))
        asking = replace(settings.asking, model=model.name)
        source = TokenSource(settings.seed, *settings.token_ids)
        await warm_up(endpoint, asking, source, workload.sessions, settings.num_warmups)
        starts = start_times(workload.sessions, request_rate=settings.request_rate, seed=settings.seed)
        pace = settings.pace or (Pace.THINK if starts is None else Pace.ARRIVALS)
        schedule = Schedule(
            workload.sessions,
            pace=Pace.THINK if _is_generated(settings) else pace,
            starts=starts,
            active_sessions=settings.active_sessions,
            max_concurrency=settings.max_concurrency,
        )
        date = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        total = num_turns(workload.sessions)
        with RunProgress(console, total, MonotonicClock()) as progress:
            load = Load(schedule, endpoint, asking, source, progress, keeps_details=settings.keeps_details)
            if recorder is not None:
                await recorder.begin()
            measured = await load.run(_stop_on_signals())
            if recorder is not None:
                await recorder.end()
    finally:
        endpoint.close()
    facts = RunFacts(
        date=date,
        label=settings.label,
        backend="openai" if settings.api.value == "completions" else "openai-chat",
        base_url=settings.base_url,
        model=model.name,
        workload=settings.workload if _is_generated(settings) else Path(settings.workload).name,
        num_planned=total,
        num_cut=workload.num_cut,
        num_dropped=workload.num_dropped,
        request_rate=settings.request_rate,
        max_concurrency=settings.max_concurrency,
        warm_tokens=settings.warm_tokens / settings.fitting.length_scale,
        heavy_tokens=settings.heavy_tokens / settings.fitting.length_scale,
        classes_by=settings.classes_by,
        settings=settings.shown,
    )
    return result_of(facts, measured), measured


def _is_generated(settings: BenchSettings) -> bool:
    return settings.workload == GENERATED


def _chosen(models: list[ServedModel], name: str | None) -> ServedModel:
    for model in models:
        if name in {None, model.name}:
            return model
    offered = ", ".join(model.name for model in models) or "none"
    raise UnavailableError(f"the endpoint does not serve {name or 'any model'}; it serves {offered}")


def _sessions(settings: BenchSettings) -> Iterator[Session]:
    if _is_generated(settings):
        return generate_sessions(settings.shape, settings.seed)
    return read_trace(Path(settings.workload), settings.trace_format)[1]


def _fitting(settings: BenchSettings, model: ServedModel) -> Fitting:
    limits = [limit for limit in (settings.fitting.max_model_len, model.max_model_len) if limit is not None]
    return replace(settings.fitting, max_model_len=min(limits, default=None))


def _stop_on_signals() -> asyncio.Event:
    """Return an event that the first SIGINT or SIGTERM sets; a second one ends the process."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def on_signal() -> None:
        stop.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    return stop
