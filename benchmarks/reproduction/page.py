"""The page that sets claims beside figures, as Markdown. Pure: the same rows give the same page."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any

from benchmarks.reproduction.claims import Quoted
from benchmarks.reproduction.markdown import capital, figures_of, plain, table
from benchmarks.reproduction.trials import outcome, trial_tables
from benchmarks.reproduction.verdict import Verdict

from kernelflume.scaler.sim.assumptions import assumptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.reproduction.claims import Claim, Claims
    from benchmarks.reproduction.verdict import Judged

_TITLES = {
    "6.2": "Online elasticity and scalability",
    "6.3": "Asynchronous kernel execution",
    "6.4": "End-to-end elasticity",
    "6.5": "Simulation",
}
_CONFIGS = "examples/paper"
_HEAD = """\
# The paper's claims and our figures

<!-- By `make reproduction`, from benchmarks/reproduction and benchmarks/results/reproduction*.json. -->

Every claim of sections 6.2 to 6.5 of [the paper](paper.md) beside a figure of this project: simulated by
[`kernelflume sim`](simulator.md), or measured, as [benchmarks/results](../benchmarks/results/) says.
`make reproduction` simulates anew what verdicts are computed from, `make reproduction-sweeps` what missed
claims depend on: the tables below them. Each writes its rows and this page; the same seeds give the same
page.

A verdict is computed: all our figures have to lie in the paper's range, widened by {tolerance} of the figure
({source}) or by what is said below the table.
Cuts of cost are compared as the cost that is left. A claim that is missed as configured, and met under
another reading of what the paper leaves open, is reproduced only under that assumption. No constant of the
simulator was chosen to meet a claim; what was assumed is [listed below](#what-is-assumed), and what costs
depend on is in [simulator.md](simulator.md#what-the-costs-depend-on).
"""
_EXPERIMENTS = """\
All rows are in [reproduction.json](../benchmarks/results/reproduction.json) and
[reproduction-sweeps.json](../benchmarks/results/reproduction-sweeps.json). `kernelflume sim sweep` on a
configuration gives its rows, with plots and a report."""
_MOST_GROUPS = 12
"""Rows of an experiment's table: longer ones are in the JSON file alone."""


def render(claims: Claims, judged: Sequence[Judged], grid: Mapping[str, Any]) -> str:
    """Return the whole page."""
    parts = [
        _head(claims, judged),
        *(_section(section, list(own), claims) for section, own in groupby(judged, _section_of)),
        _experiments(claims, grid),
        _assumptions(),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _section_of(one: Judged) -> str:
    return one.claim.section


def _head(claims: Claims, judged: Sequence[Judged]) -> str:
    counts = Counter(one.verdict for one in judged)
    rows = [(verdict.value, str(counts[verdict])) for verdict in Verdict if counts[verdict]]
    text = _HEAD.format(tolerance=f"{100 * claims.tolerance:g} %", source=claims.tolerance_source)
    return f"{text}\n{table(('verdict', 'claims'), rows)}"


def _section(section: str, judged: Sequence[Judged], claims: Claims) -> str:
    rows = [
        (f"[{one.claim.claim}](#{one.claim.name})" if _has_more(one) else one.claim.claim, one.claim.paper,
         figures_of(one.claim, one.values), _source(one.claim, claims), _bold(one.verdict))
        for one in judged
    ]  # fmt: skip
    judgements = table(("claim", "paper", "here", "from", "verdict"), rows)
    more = [_more(one, claims) for one in judged if _has_more(one)]
    return "\n\n".join([f"## {section} {_TITLES[section]}", judgements, *more])


def _has_more(one: Judged) -> bool:
    return bool(one.claim.reading) or one.verdict is not Verdict.REPRODUCED


def _more(one: Judged, claims: Claims) -> str:
    claim = one.claim
    parts = [f'<a id="{claim.name}"></a>**{claim.claim}: {one.verdict}.** {claim.reading}'.strip()]
    if one.verdict is not Verdict.REPRODUCED and claim.why:
        parts.append(claim.why)
    if one.trials:
        parts.append(outcome(one, claims))
    text = " ".join(" ".join(part.split()) for part in parts)
    return "\n\n".join([text, *trial_tables(one, claims)])


def _source(claim: Claim, claims: Claims) -> str:
    if claim.measured is not None:
        kind = "states" if isinstance(claim.measured, Quoted) else "table"
        on = f", {claim.device}" if claim.device else ""
        return f'[measured](../benchmarks/results/{claim.measured.file} "{kind}"){on}'
    if claim.simulated is not None:
        config = claims.experiments[claim.simulated.experiment].config
        return f"[simulated]({_CONFIGS}/{config})"
    return "-"


def _experiments(claims: Claims, grid: Mapping[str, Any]) -> str:
    parts = ["## What was simulated", _EXPERIMENTS]
    for name, experiment in claims.experiments.items():
        rows = grid[name]
        settings = [f"[{experiment.config}]({_CONFIGS}/{experiment.config})"]
        settings += [f"`{setting}: {value}`" for setting, value in experiment.settings.items()]
        settings += [f"`{setting}` of {plain(values)}" for setting, values in experiment.sweep.items()]
        by = "" if experiment.part == "claims" else ", by `make reproduction-sweeps`"
        parts.append(
            f"### {capital(experiment.what)}\n\n{', '.join(settings)}; {len(rows)} combinations{by}."
        )
        if experiment.part == "claims" and len(rows) <= _MOST_GROUPS:
            parts.append(_results(rows, claims))
    return "\n\n".join(parts)


def _results(rows: Sequence[Mapping[str, Any]], claims: Claims) -> str:
    names = list(rows[0]["settings"])
    head = [claims.words.get(name, name.split(", ")[0].rpartition(".")[2]) for name in names]
    cells = [
        (*(plain(row["settings"].get(name, "")) for name in names), result["strategy"], result["layout"],
         f"{result['usd_per_million_tokens']:.2f}", str(result["most_gpus"]),
         f"{1e3 * result['step_p50_s']:.1f}", f"{1e3 * result['step_p99_s']:.1f}",
         f"{100 * result['step_attainment']:.2f}", f"{100 * result['turn_attainment']:.2f}")
        for row in rows for result in row["results"]
    ]  # fmt: skip
    return table(
        (*head, "strategy", "layout", "$/Mtok", "most GPUs", "step p50 ms", "step p99 ms", "steps in SLO %",
         "tokens in SLO %"),
        cells,
    )  # fmt: skip


def _assumptions() -> str:
    parts = ["## What is assumed", "Of every simulation; prices and their sources are in the configurations."]
    for topic, entries in groupby(assumptions(), lambda entry: entry.topic):
        parts.append(f"### {capital(topic)}")
        parts.append(table(("assumption", "from"), [(one.assumption, one.source) for one in entries]))
    return "\n\n".join(parts)


def _bold(verdict: Verdict) -> str:
    return f"**{verdict}**" if verdict is Verdict.REPRODUCED else str(verdict)
