"""Classes of requests by the tokens that had to be computed anew, and the figures of each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from kernelflume.cli.bench.distribution import percentile
from kernelflume.core.request_class import RequestClass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.cli.bench.outcome import Outcome
    from kernelflume.core.request_class import ClassBounds


class ClassSource(StrEnum):
    """Where the number of new tokens comes from."""

    USAGE = "usage"
    """The server's cached tokens: what it had to compute in this run."""
    TRACE = "trace"
    """A cache without an end: the same classes in every run of a workload."""


@dataclass(frozen=True, slots=True)
class ClassRule:
    """Bounds of the classes, and where the number of new tokens comes from."""

    bounds: ClassBounds
    source: ClassSource

    def class_of(self, outcome: Outcome) -> RequestClass:
        """Return a request's class; one whose cached tokens are not told is classed by the trace."""
        cached = outcome.num_cached if self.source is ClassSource.USAGE else None
        return self.bounds.of(outcome.num_prompt - (outcome.hit_tokens if cached is None else cached))


def class_source(outcomes: Sequence[Outcome], asked: ClassSource | None) -> ClassSource:
    """Return where classes come from when it was not asked for one: the server, if it tells cached tokens."""
    if asked is not None:
        return asked
    tells = any(outcome.num_cached is not None for outcome in outcomes)
    return ClassSource.USAGE if tells else ClassSource.TRACE


def class_lines(outcomes: Sequence[Outcome], rule: ClassRule) -> dict[str, dict[str, Any]]:
    """Return the figures of all requests and of each class; times in seconds, None where there is none."""
    groups: dict[str, list[Outcome]] = {"ALL": list(outcomes)} | {each.name: [] for each in RequestClass}
    for outcome in outcomes:
        groups[rule.class_of(outcome).name].append(outcome)
    return {name: _line(group) for name, group in groups.items()}


def _line(group: Sequence[Outcome]) -> dict[str, Any]:
    whole = [outcome for outcome in group if outcome.ok]
    ttfts = [outcome.ttft_s for outcome in whole if outcome.ttft_s is not None]
    tpots = [outcome.tpot_s for outcome in whole if outcome.tpot_s is not None]
    prompt = sum(outcome.num_prompt for outcome in whole)
    return {
        "ok": len(whole),
        "n": len(group),
        "ttft_p50_s": percentile(ttfts, 50),
        "ttft_p90_s": percentile(ttfts, 90),
        "tpot_p90_s": percentile(tpots, 90),
        "e2e_p50_s": percentile([outcome.e2e_s for outcome in whole], 50),
        "prompt_tokens": prompt,
        "cached_tokens": sum(outcome.num_served_from_cache for outcome in whole),
        "output_tokens": sum(outcome.num_output for outcome in whole),
    }
