"""Weight nodes as a client sees them: what each served, what its cache saved, how even they were used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kernelflume.cli.bench.outcome import Outcome


def node_lines(outcomes: Sequence[Outcome], duration_s: float) -> dict[str, dict[str, Any]]:
    """Return the figures of each node that served a whole answer and was named.

    A node's utilisation is the share of the run in which it had a request of this run.
    """
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.ok and outcome.node:
            groups.setdefault(outcome.node, []).append(outcome)
    lines = {}
    for node, group in sorted(groups.items()):
        prompt = sum(outcome.num_prompt for outcome in group)
        cached = sum(outcome.num_served_from_cache for outcome in group)
        output = sum(outcome.num_output for outcome in group)
        busy_s = covered_s((outcome.sent_s, outcome.sent_s + outcome.e2e_s) for outcome in group)
        lines[node] = {
            "requests": len(group),
            "prompt_tokens": prompt,
            "cached_tokens": cached,
            "prefix_hit": cached / prompt if prompt else None,
            "computed_tokens": prompt - cached + output,
            "utilisation": min(1.0, busy_s / duration_s) if duration_s > 0 else None,
        }
    return lines


def imbalance(lines: dict[str, dict[str, Any]], figure: str) -> float | None:
    """Return the largest over the smallest of a figure; None with fewer than two nodes, or one without."""
    values = [float(line[figure]) for line in lines.values() if line[figure]]
    return max(values) / min(values) if len(values) > 1 and len(values) == len(lines) else None


def covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """Return how much time lies in at least one of the spans."""
    total, end = 0.0, float("-inf")
    for begin_s, end_s in sorted(spans):
        total += max(0.0, end_s - max(begin_s, end))
        end = max(end, end_s)
    return total
