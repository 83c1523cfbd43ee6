"""What `kernelflume profile` runs, and how a profile follows from what was measured. Nothing is done here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from kernelflume.core.errors import ConfigurationError
from kernelflume.core.profile import Curve, PerformanceProfile, StepTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kernelflume.core.geometry import KvGeometry

DEFAULT_ROWS = (1, 2, 4, 8, 16, 32)
QUICK_ROWS = (1, 4, 16)
PROMPT_TOKENS = 16
"""Of each sequence whose steps are measured: their attention is to be short beside the rest."""
PREFILL_TOKENS = (16, 64, 256, 512)
QUICK_PREFILL_TOKENS = (16, 256)
"""Of the prompts that are measured by themselves."""
_SPARE_TOKENS = 512
"""Room for what a sequence generates while it is measured."""
_POOL_SHARE = 0.8
_OVERLAPPED = 1.25
"""Stages that take so many times the step together do so in microbatches, which overlap."""
_MIB = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePlan:
    """How much is measured."""

    rows: tuple[int, ...]
    num_windows: int
    """Reports of the step loop, each the medians of its latest steps, for each number of rows."""
    num_growth_windows: int
    """As many before and after a node is added."""
    scan_sequences: int
    scan_tokens: int
    """Of each of those sequences: together they leave the caches."""
    num_scans: int
    """Readings of the attention node's bandwidth."""
    num_growths: int
    """How often a node is added and removed."""
    prefill_tokens: tuple[int, ...]
    num_prefills: int
    """Prompts of each length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSteps:
    """Steps of one number of rows."""

    times: StepTimes
    held_tokens: int
    """On the one attention node, meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredGrowth:
    """What one more attention node took and takes."""

    prewarm_s: float
    """T_prewarm."""
    before_s: float
    """Mean step on one node."""
    after_s: float
    """Mean step of as many rows, spread over both."""


def plan_profile(
    rows: Sequence[int], geometry: KvGeometry, *, is_quick: bool, pool_bytes: int, max_model_len: int
) -> ProfilePlan:
    """Plan the measurements.

    Args:
        rows: numbers of rows that are asked for; none takes the usual ones.
        geometry: shape of the model's keys and values.
        is_quick: measure as little as says anything.
        pool_bytes: memory of an attention node.
        max_model_len: most tokens of a sequence.

    Raises:
        ConfigurationError: a number of rows is out of range, the pool is too small to measure a scan, or
            sequences are too short; the message names the flag and what it needs at the least.
    """
    chosen = tuple(sorted(set(rows) or (QUICK_ROWS if is_quick else DEFAULT_ROWS)))
    if chosen[0] < 1:
        raise ConfigurationError(f"--rows: {chosen[0]} is not from 1")
    least = 96 * _MIB
    wanted = least if is_quick else 256 * _MIB
    num_bytes = min(wanted, int(_POOL_SHARE * pool_bytes))
    if num_bytes < least:
        needed = math.ceil(least / _POOL_SHARE / _MIB)
        raise ConfigurationError(
            f"--attention-node-memory: {pool_bytes / _MIB:g}MiB is too small: {needed}MiB is the least, as "
            f"{least // _MIB} MiB of keys and values must fit {_POOL_SHARE:.0%} of it to measure how fast "
            "they are read"
        )
    longest = max_model_len - _SPARE_TOKENS
    if longest < PROMPT_TOKENS:
        raise ConfigurationError(
            f"--max-model-len: {max_model_len} is too short: {_SPARE_TOKENS + PROMPT_TOKENS} tokens is the "
            "least, for a prompt and the steps that are measured after it"
        )
    num_tokens = -(-num_bytes // geometry.token_bytes)
    num_sequences = max(2 if is_quick else 4, -(-num_tokens // longest))
    return ProfilePlan(
        rows=chosen,
        num_windows=1 if is_quick else 3,
        num_growth_windows=1 if is_quick else 2,
        scan_sequences=num_sequences,
        scan_tokens=-(-num_tokens // num_sequences),
        num_scans=1 if is_quick else 5,
        num_growths=1 if is_quick else 2,
        prefill_tokens=QUICK_PREFILL_TOKENS if is_quick else PREFILL_TOKENS,
        num_prefills=1 if is_quick else 3,
    )


def check_rows(plan: ProfilePlan, max_num_seqs: int) -> None:
    """Check that a weight node runs as many sequences at once as are to be measured together.

    Args:
        plan: what is measured.
        max_num_seqs: the weight node's bound.

    Raises:
        ConfigurationError: it does not; the message names the flag, the bound, and what raises it.
    """
    bound = (
        f"the weight node runs at most {max_num_seqs} at once: max_num_seqs, which "
        "KERNELFLUME_WNODE_MAX_NUM_SEQS sets"
    )
    if plan.rows[-1] > max_num_seqs:
        raise ConfigurationError(f"--rows: {plan.rows[-1]} sequences are to decode together, but {bound}")
    if plan.scan_sequences > max_num_seqs:
        raise ConfigurationError(
            f"--max-model-len: {plan.scan_sequences} sequences of {plan.scan_tokens} tokens are to decode "
            f"together, to measure how fast keys and values are read, but {bound}"
        )


def typical_steps(windows: Sequence[MeasuredSteps], *, mean_s: float, num_layers: int) -> MeasuredSteps:
    """Return a step that stands for several reports on as many rows.

    Its time divides as the medians do, which one disturbed step does not move; but it is the mean, for what
    disturbs steps now and then does so while they are served. Stages and overhead add up to it, other than
    medians do, unless they overlap.

    Args:
        windows: reports.
        mean_s: mean time of all their steps.
        num_layers: of the model.
    """
    times = [window.times for window in windows]
    median_s = median(each.step_s for each in times)
    sum_s = median(each.overhead_s for each in times) + num_layers * (
        median(each.projection_s for each in times)
        + median(each.attention_s for each in times)
        + median(each.post_attention_s for each in times)
    )
    level = mean_s / (median_s if sum_s > _OVERLAPPED * median_s else sum_s)
    return MeasuredSteps(
        times=StepTimes(
            rows=times[0].rows,
            step_s=mean_s,
            projection_s=level * median(each.projection_s for each in times),
            attention_s=level * median(each.attention_s for each in times),
            post_attention_s=level * median(each.post_attention_s for each in times),
            overhead_s=level * median(each.overhead_s for each in times),
        ),
        held_tokens=int(median(window.held_tokens for window in windows)),
    )


def assemble(
    steps: Sequence[MeasuredSteps],
    geometry: KvGeometry,
    *,
    hardware: str,
    bytes_per_s: float,
    growths: Sequence[MeasuredGrowth],
    prefills: Sequence[tuple[int, float]],
) -> PerformanceProfile:
    """Return the profile that follows from the measurements.

    Args:
        steps: one for each number of rows, ascending.
        geometry: shape of the model's keys and values.
        hardware: what it was measured on, for people.
        bytes_per_s: attention bandwidth.
        growths: from one attention node to two.
        prefills: (tokens, seconds) of prompts, ascending.
    """

    def curve(seconds: Callable[[MeasuredSteps], float]) -> Curve:
        return rising([(float(step.times.rows), seconds(step)) for step in steps])

    def exchange_s(step: MeasuredSteps) -> float:
        scan_s = step.held_tokens * geometry.kv_row_bytes / bytes_per_s
        return max(0.0, step.times.attention_s - scan_s)

    return PerformanceProfile(
        model_id=geometry.model_id,
        hardware=hardware,
        num_layers=geometry.num_layers,
        projection_s=curve(lambda step: step.times.projection_s),
        post_attention_s=curve(lambda step: step.times.post_attention_s),
        step_overhead_s=curve(lambda step: step.times.overhead_s),
        exchange_s=curve(exchange_s),
        attention_bytes_per_s=bytes_per_s,
        prewarm_s=median(growth.prewarm_s for growth in growths),
        prefill_s=rising([(float(tokens), seconds) for tokens, seconds in prefills]),
        further_node_share=further_node_share(growths),
    )


def rising(points: Sequence[tuple[float, float]]) -> Curve:
    """Return a curve that never falls, as near to the points as one can be.

    More rows or tokens never take less time: where it looks so, the machine was disturbed. Neighbours of
    which that is so get their mean, so that their level stays what it is.

    Args:
        points: (rows or tokens, seconds), ascending.
    """
    levels: list[tuple[float, int]] = []
    for _, seconds in points:
        level, count = seconds, 1
        while levels and levels[-1][0] > level:
            before, others = levels.pop()
            level, count = (before * others + level * count) / (others + count), others + count
        levels.append((level, count))
    seconds_of = (level for level, count in levels for _ in range(count))
    return Curve(tuple((x, seconds) for (x, _), seconds in zip(points, seconds_of, strict=True)))


def further_node_share(growths: Sequence[MeasuredGrowth]) -> float:
    """Return by which share of a step a further attention node makes it longer: 0 where it does not."""
    before_s = sum(growth.before_s for growth in growths)
    after_s = sum(growth.after_s for growth in growths)
    return max(0.0, after_s / before_s - 1)


def summary(profile: PerformanceProfile, steps: Sequence[MeasuredSteps]) -> str:
    """Return the profile in words and figures, for a person."""
    exchange = ", ".join(
        f"{1e6 * profile.exchange_s.at(step.times.rows):.0f} ({step.times.rows})" for step in steps
    )
    lines = [
        f"{profile.model_id} on {profile.hardware}",
        "",
        f"{'rows':>4} {'step':>9} {'T_p':>9} {'T_A':>9} {'T_f':>9} {'overhead':>9}   ms, of all layers",
    ]
    for step in steps:
        times = step.times
        layers = [
            profile.num_layers * each
            for each in (times.projection_s, times.attention_s, times.post_attention_s)
        ]
        figures = (times.step_s, *layers, times.overhead_s)
        lines.append(" ".join((f"{times.rows:>4}", *(f"{1e3 * figure:>9.2f}" for figure in figures))))
    points = profile.prefill_s.points if profile.prefill_s is not None else ()
    prompts = ", ".join(f"{1e3 * seconds:.0f} ({tokens:.0f})" for tokens, seconds in points)
    lines += [
        "",
        f"prompts              {prompts} ms to the first token (tokens)",
        f"attention bandwidth  {profile.attention_bytes_per_s / 1e9:.2f} GB/s",
        f"exchange             {exchange} us a layer (rows)",
        f"prewarm              {profile.prewarm_s:.2f} s",
        f"further node         {100 * (profile.further_node_share or 0.0):.0f} % of a step",
    ]
    return "\n".join(lines)
