"""`kernelflume profile`: start a small stack, have it measure itself, and end it."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import grpc
import psutil

from kernelflume.cli.measure import StackMeter
from kernelflume.cli.parts import LOCALHOST, Probe
from kernelflume.cli.prepare import check_memory, find_model, geometry_of, make_log_dir, plan, with_ports
from kernelflume.cli.profile_plan import assemble, check_rows, plan_profile
from kernelflume.cli.readiness import Readiness
from kernelflume.cli.supervisor import StackInterruptedError, Supervisor, adopt_orphans
from kernelflume.core.errors import ConfigurationError
from kernelflume.rpc.status import error_of
from kernelflume.runtime.clock import MonotonicClock

if TYPE_CHECKING:
    from kernelflume.cli.parts import PartSpec
    from kernelflume.cli.profile_plan import MeasuredSteps, ProfilePlan
    from kernelflume.cli.progress import StartReporter
    from kernelflume.cli.stack import StackOptions
    from kernelflume.core.geometry import KvGeometry
    from kernelflume.core.profile import PerformanceProfile

_GROWTH_ROWS = 8
"""Sequences that decode while a node is added: it is in a pool with many of them that nodes are."""
_GROWTH_TOKENS = 128
"""Of each of them: nodes that share cores attend one after the other, the longer the more they hold."""
_EXIT_NOTICE_S = 0.5
_NUM_POOLS = 2
"""The node that is measured, and the one that is added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """What a person asked `kernelflume profile` for."""

    stack: StackOptions
    """As `kernelflume serve` is asked: the cores are shared among its number of attention nodes."""
    rows: tuple[int, ...]
    is_quick: bool
    start_timeout_s: float


def measure_profile(
    options: ProfileOptions, reporter: StartReporter
) -> tuple[PerformanceProfile, tuple[MeasuredSteps, ...]]:
    """Measure a model on this machine; return its profile, and the steps that it was made of.

    Raises:
        ConfigurationError: something cannot be had; the message names the flag.
        KernelFlumeError: a part of the stack ended, or a measurement failed; everything was ended.
    """
    stack = with_ports(options.stack)
    make_log_dir(stack.log_dir)
    check_memory(
        replace(stack, num_attention_nodes=_NUM_POOLS), available_bytes=psutil.virtual_memory().available
    )
    checkpoint = find_model(stack.model, reporter)
    geometry = geometry_of(checkpoint, stack.dtype, stack.kv_cache_dtype)
    measurements = plan_profile(
        options.rows,
        geometry,
        is_quick=options.is_quick,
        pool_bytes=stack.attention_node_memory_bytes,
        max_model_len=stack.max_model_len or checkpoint.config.max_position_embeddings,
    )
    stages = plan(replace(stack, num_attention_nodes=1), checkpoint, num_sharing=stack.num_attention_nodes)
    try:
        return asyncio.run(
            _run(
                stack,
                stages,
                measurements,
                geometry,
                start_timeout_s=options.start_timeout_s,
                reporter=reporter,
            )
        )
    except grpc.RpcError as failure:
        raise error_of(failure) from failure


def write_profile(profile: PerformanceProfile, path: Path) -> None:
    """Write a profile file.

    Raises:
        ConfigurationError: it cannot be written.
    """
    try:
        path.write_text(json.dumps(profile.to_dict(), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--output: cannot write {path}: {error.strerror}") from error


def check_writable(path: Path) -> None:
    """Check that a file can be written, before what goes into it is measured.

    Raises:
        ConfigurationError: it cannot.
    """
    if path.is_dir() or not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise ConfigurationError(f"--output: cannot write {path}")


def hardware() -> str:
    """Name this machine's processor and how many of its cores this process may use."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    name = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), name)
    return f"{name}, {len(psutil.Process().cpu_affinity())} cores"


async def _run(
    stack: StackOptions,
    stages: tuple[tuple[PartSpec, ...], ...],
    measurements: ProfilePlan,
    geometry: KvGeometry,
    *,
    start_timeout_s: float,
    reporter: StartReporter,
) -> tuple[PerformanceProfile, tuple[MeasuredSteps, ...]]:
    adopt_orphans()
    readiness = Readiness(cluster=stack.cluster, num_attention_nodes=1)
    supervisor = Supervisor(log_dir=stack.log_dir, readiness=readiness, clock=MonotonicClock())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, supervisor.ask_stop)
    [weight_node] = [
        address
        for stage in stages
        for spec in stage
        for probe, address in spec.probes
        if probe is Probe.CONNECTED
    ]
    meter = StackMeter(
        router=f"http://{LOCALHOST}:{stack.port}",
        model=stack.model,
        weight_node=weight_node,
        scaler=f"{LOCALHOST}:{stack.scaler_port}",
    )
    try:
        await supervisor.start(stages, reporter, timeout_s=start_timeout_s)
        measuring = asyncio.create_task(_measure(meter, measurements, geometry, reporter))
        ending = asyncio.create_task(supervisor.wait_end())
        await asyncio.wait({measuring, ending}, return_when=asyncio.FIRST_COMPLETED)
        if measuring.done() and measuring.exception() is not None:
            # Where a part has ended, that is the reason, and is noticed next.
            await asyncio.wait({ending}, timeout=_EXIT_NOTICE_S)
        for task in (ending, measuring):
            if not task.done():
                task.cancel()
        await asyncio.wait({measuring, ending})
        if not ending.cancelled():
            ending.result()  # raises where a part of the stack ended
            raise StackInterruptedError("interrupted before it was measured")
        return measuring.result()
    finally:
        await meter.close()
        await supervisor.stop()
        await readiness.close()


async def _measure(
    meter: StackMeter, measurements: ProfilePlan, geometry: KvGeometry, reporter: StartReporter
) -> tuple[PerformanceProfile, tuple[MeasuredSteps, ...]]:
    check_rows(measurements, (await meter.card()).max_num_seqs)
    clock = MonotonicClock()
    steps: list[MeasuredSteps] = []
    for rows in measurements.rows:
        name, title, began = f"rows-{rows}", f"steps of {rows} row{'' if rows == 1 else 's'}", clock.now()
        reporter.working(name, title)
        steps.append(await meter.measure_steps(rows, num_windows=measurements.num_windows))
        reporter.ready(name, title, clock.now() - began)

    title, began = "attention bandwidth", clock.now()
    reporter.working("scan", title)
    bytes_per_s = await meter.measure_scan(
        measurements.scan_sequences, measurements.scan_tokens, num_readings=measurements.num_scans
    )
    reporter.ready("scan", title, clock.now() - began)

    title, began = "prompts", clock.now()
    prefills = []
    for number, num_tokens in enumerate(measurements.prefill_tokens):
        reporter.fraction("prompts", title, number / len(measurements.prefill_tokens))
        seconds = [await meter.measure_prefill(num_tokens) for _ in range(measurements.num_prefills)]
        prefills.append((num_tokens, median(seconds)))
    reporter.ready("prompts", title, clock.now() - began)

    title, began = "a further attention node", clock.now()
    growths = []
    for number in range(measurements.num_growths):
        reporter.fraction("growth", title, number / measurements.num_growths)
        growths.append(
            await meter.measure_growth(
                min(_GROWTH_ROWS, measurements.rows[-1]),
                _GROWTH_TOKENS,
                num_windows=measurements.num_growth_windows,
            )
        )
    reporter.ready("growth", title, clock.now() - began)

    profile = assemble(
        steps,
        geometry,
        hardware=hardware(),
        bytes_per_s=bytes_per_s,
        growths=growths,
        prefills=prefills,
    )
    return profile, tuple(steps)
