"""A result as a person reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from kernelflume.cli.tables import UNKNOWN, table

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

FIGURES = ("ttft", "tpot", "itl", "e2el")


def render(result: dict[str, Any]) -> RenderableType:
    """Return the tables of a run, and what has to be said about it."""
    own = result["kernelflume"]
    parts: list[RenderableType] = [_totals(result), Text(), _times(result), Text(), _classes(own)]
    if own["nodes"]:
        parts += [Text(), _nodes(own)]
    remarks = [Text(remark, style="yellow") for remark in remarks_of(result)]
    return Group(*parts, *([Text(), *remarks] if remarks else []))


def remarks_of(result: dict[str, Any]) -> list[str]:
    """Return what a reader of the figures must know."""
    own = result["kernelflume"]
    remarks = []
    if own["interrupted"]:
        done = result["completed"] + result["failed"]
        remarks.append(f"interrupted: {done} of {own['planned']} requests, the figures are of these")
    remarks += [
        f"{count} failed with {status}: {own['failure_examples'][status] or 'nothing was said'}"
        for status, count in own["failures"].items()
    ]
    if own["skipped_after_failure"]:
        remarks.append(f"{own['skipped_after_failure']} turns were not asked, as one before them failed")
    if own["dropped_past_context"]:
        remarks.append(f"{own['dropped_past_context']} turns were left out: longer than the longest context")
    if own["cut_to_context"]:
        remarks.append(f"{own['cut_to_context']} requests were cut to the longest context")
    client = own["client"]
    if client["is_bottleneck"]:
        remarks.append(
            f"the client was late: its event loop lagged by {client['p99_loop_lag_ms']:.1f} ms (p99), "
            f"{client['max_loop_lag_ms']:.1f} ms at most, while it used {share(client['cpu_share'])} of a "
            "processor; times may be too long by as much"
        )
    return remarks


def number(value: float | None, decimals: int = 2) -> str:
    """Return a figure, or a dash where there is none."""
    return UNKNOWN if value is None else f"{value:.{decimals}f}"


def share(value: float | None) -> str:
    """Return a share in percent, or a dash where there is none."""
    return UNKNOWN if value is None else f"{100 * value:.1f} %"


def _totals(result: dict[str, Any]) -> Table:
    own = result["kernelflume"]
    rows = table("run", ">")
    rows.add_row("requests", f"OK={result['completed']}/{result['completed'] + result['failed']}")
    rows.add_row("duration", f"{result['duration']:.1f} s")
    rows.add_row("requests/s", number(result["request_throughput"]))
    rows.add_row("input, output tokens", f"{result['total_input_tokens']}, {result['total_output_tokens']}")
    rows.add_row("output tokens/s", number(result["output_throughput"], 1))
    rows.add_row("most at a time", str(result["max_concurrent_requests"]))
    rows.add_row("prompt tokens from cache", share(own["prefix_hit"]))
    rows.add_row("of a cache without an end", share(own["infinite_cache_hit"]))
    if own["imbalance_utilisation"] is not None:
        rows.add_row("imbalance (max/min utilisation)", f"{own['imbalance_utilisation']:.2f}x")
    rows.add_row("client lag p99", f"{number(own['client']['p99_loop_lag_ms'], 1)} ms")
    return rows


def _times(result: dict[str, Any]) -> Table:
    kinds = ("mean", "std", "median", "p90", "p95", "p99")
    rows = table("ms", *(f">{kind}" for kind in kinds))
    for figure in FIGURES:
        rows.add_row(figure.upper(), *(number(result[f"{kind}_{figure}_ms"]) for kind in kinds))
    return rows


def _classes(own: dict[str, Any]) -> Table:
    rows = table(
        f"new tokens ({own['classes_by']})",
        ">OK/N",
        ">TTFT50 s",
        ">TTFT90 s",
        ">TPOT90 s",
        ">E2E50 s",
        ">cached",
    )
    limits = {
        "WARM": f"WARM (<= {own['warm_tokens']:g})",
        "HEAVY": f"HEAVY (> {own['heavy_tokens']:g})",
    }
    for name, line in own["classes"].items():
        times = (line["ttft_p50_s"], line["ttft_p90_s"], line["tpot_p90_s"], line["e2e_p50_s"])
        cached = line["cached_tokens"] / line["prompt_tokens"] if line["prompt_tokens"] else None
        shown = share(None if own["prefix_hit"] is None else cached)
        rows.add_row(
            limits.get(name, name), f"{line['ok']}/{line['n']}", *(number(time, 4) for time in times), shown
        )
    return rows


def _nodes(own: dict[str, Any]) -> Table:
    rows = table("weight node", ">requests", ">prefix hit", ">computed tokens", ">utilisation")
    for name, line in own["nodes"].items():
        hit = share(line["prefix_hit"])
        rows.add_row(
            Text(name), str(line["requests"]), hit, str(line["computed_tokens"]), share(line["utilisation"])
        )
    return rows
