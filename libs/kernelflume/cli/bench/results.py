"""The result of a run: the fields of `vllm bench serve`, and ours beside them under `kernelflume`."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernelflume.cli.bench.answer import CANCELLED
from kernelflume.cli.bench.classes import ClassRule, ClassSource, class_lines, class_source
from kernelflume.cli.bench.details import detail_fields, own_detail_fields
from kernelflume.cli.bench.distribution import percentile, summary_ms
from kernelflume.cli.bench.nodes import imbalance, node_lines
from kernelflume.core.request_class import ClassBounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.cli.bench.load import Measured
    from kernelflume.cli.bench.outcome import Outcome

SCHEMA = 1
LATE_CLIENT_MS = 10.0
"""When 1 % of the looks at the client's event loop found it later than this, its own figures are in doubt."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What was asked for."""

    date: str
    label: str
    backend: str
    base_url: str
    model: str
    workload: str
    num_planned: int
    num_cut: int
    num_dropped: int
    request_rate: float | None
    max_concurrency: int | None
    warm_tokens: float
    heavy_tokens: float
    classes_by: ClassSource | None
    settings: dict[str, Any]


def result_of(facts: RunFacts, measured: Measured) -> dict[str, Any]:
    """Return the result, ready for JSON. Requests that were cancelled by an interruption count nowhere."""
    outcomes = [outcome for outcome in measured.outcomes if outcome.status != CANCELLED]
    whole = [outcome for outcome in outcomes if outcome.ok]
    duration_s = measured.duration_s
    num_input = sum(outcome.num_prompt for outcome in whole)
    num_output = sum(outcome.num_output for outcome in whole)
    per_second = 1 / duration_s if duration_s > 0 else 0.0
    rate = facts.request_rate
    return {
        "date": facts.date,
        "endpoint_type": facts.backend,
        "backend": facts.backend,
        "label": facts.label,
        "model_id": facts.model,
        "tokenizer_id": facts.model,
        "num_prompts": facts.num_planned,
        "request_rate": "inf" if rate is not None and math.isinf(rate) else rate,
        "burstiness": 1.0,
        "max_concurrency": facts.max_concurrency,
        "duration": duration_s,
        "completed": len(whole),
        "failed": len(outcomes) - len(whole),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(whole) * per_second,
        "request_goodput": None,
        "output_throughput": num_output * per_second,
        "total_token_throughput": (num_input + num_output) * per_second,
        "max_concurrent_requests": _peak(whole),
        **summary_ms("ttft", [outcome.ttft_s for outcome in whole if outcome.ttft_s is not None]),
        **summary_ms("tpot", [outcome.tpot_s for outcome in whole if outcome.tpot_s is not None]),
        **summary_ms("itl", measured.gaps.values),
        **summary_ms("e2el", [outcome.e2e_s for outcome in whole]),
        **({} if measured.details is None else detail_fields(measured.details)),
        "kernelflume": _own(facts, measured, outcomes),
    }


def _own(facts: RunFacts, measured: Measured, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    source = class_source(outcomes, facts.classes_by)
    rule = ClassRule(ClassBounds(facts.warm_tokens, facts.heavy_tokens), source)
    whole = [outcome for outcome in outcomes if outcome.ok]
    num_prompt = sum(outcome.num_prompt for outcome in whole)
    told = [outcome for outcome in whole if outcome.num_cached is not None]
    nodes = node_lines(outcomes, measured.duration_s)
    return {
        "schema": SCHEMA,
        "interrupted": measured.interrupted,
        "base_url": facts.base_url,
        "workload": facts.workload,
        "settings": facts.settings,
        "planned": facts.num_planned,
        "cut_to_context": facts.num_cut,
        "dropped_past_context": facts.num_dropped,
        "skipped_after_failure": measured.num_skipped,
        "failures": dict(Counter(outcome.status for outcome in outcomes if not outcome.ok)),
        "failure_examples": _examples(outcomes),
        "classes_by": str(source),
        "warm_tokens": facts.warm_tokens,
        "heavy_tokens": facts.heavy_tokens,
        "classes": class_lines(outcomes, rule),
        "cached_tokens": sum(outcome.num_served_from_cache for outcome in told) if told else None,
        "prefix_hit": _share(sum(outcome.num_served_from_cache for outcome in told), num_prompt, bool(told)),
        "infinite_cache_hit": _share(sum(outcome.hit_tokens for outcome in whole), num_prompt, bool(whole)),
        "nodes": nodes,
        "imbalance_utilisation": imbalance(nodes, "utilisation"),
        "imbalance_computed_tokens": imbalance(nodes, "computed_tokens"),
        "itl_samples": measured.gaps.num_seen,
        "client": client_figures(measured, outcomes),
        **({} if measured.details is None else {"requests": own_detail_fields(measured.details)}),
    }


def client_figures(measured: Measured, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return whether the client kept up: lag of its event loop, and how late requests were sent."""
    lag = percentile(measured.lags_s, 99)
    late = percentile([outcome.late_s for outcome in outcomes], 99)
    return {
        "p99_loop_lag_ms": None if lag is None else 1000 * lag,
        "max_loop_lag_ms": 1000 * max(measured.lags_s) if measured.lags_s else None,
        "p99_sent_late_ms": None if late is None else 1000 * late,
        "cpu_share": measured.client_cpu_s / measured.duration_s if measured.duration_s > 0 else None,
        "is_bottleneck": lag is not None and 1000 * lag > LATE_CLIENT_MS,
    }


def _examples(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Return for each way to fail what was said the first time."""
    examples: dict[str, str] = {}
    for outcome in outcomes:
        if not outcome.ok:
            examples.setdefault(outcome.status, outcome.detail)
    return examples


def _share(part: int, whole: int, known: bool) -> float | None:
    return part / whole if known and whole else None


def _peak(whole: Sequence[Outcome]) -> int:
    """Return the most requests that ran at a time; one that ends when another begins is not counted twice."""
    changes = [(outcome.sent_s, 1) for outcome in whole]
    changes += [(outcome.sent_s + outcome.e2e_s, -1) for outcome in whole]
    running = peak = 0
    for _, change in sorted(changes):
        running += change
        peak = max(peak, running)
    return peak
