"""What a missed claim comes to under other readings of what the paper leaves open, as tables. Pure."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from benchmarks.reproduction.markdown import capital, figures_of, plain, table

from kernelflume.scaler.sim.sweep import spread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.reproduction.claims import Claim, Claims
    from benchmarks.reproduction.verdict import Judged, Trial

_MOST_NAMED = 3
"""Combinations that are named in the text; all are in the tables."""
_CONFIGS = "examples/paper"


def outcome(one: Judged, claims: Claims) -> str:
    """Return in words where a claim holds; or what its figure spans, and where it is nearest."""
    met = [trial for trial in one.trials if trial.holds]
    if met:
        named = ", or where ".join(_words(trial, one.claim, claims) for trial in met[:_MOST_NAMED])
        among = f"; in {len(met)} of {len(one.trials)} combinations in all" if len(met) > _MOST_NAMED else ""
        return f"It holds where {named}{among}."
    values = [value for trial in one.trials for value in trial.values]
    nearest = min(one.trials, key=lambda trial: trial.miss)
    return (
        f"Over the {len(one.trials)} combinations below it is {figures_of(one.claim, values)}, the nearest "
        f"{figures_of(one.claim, nearest.values)} where {_words(nearest, one.claim, claims)}."
    )


def trial_tables(one: Judged, claims: Claims) -> list[str]:
    """Return a table of each experiment: settings down, strategies in the place of others across."""
    parts = []
    for name, several in groupby(one.trials, lambda trial: trial.experiment):
        experiment = claims.experiments[name]
        source = f"[{experiment.config}]({_CONFIGS}/{experiment.config})"
        parts.append(f"{capital(experiment.what)} ({source}); in bold what is in the range:")
        parts.append(_table(list(several), one.claim, claims))
    return parts


def _table(trials: list[Trial], claim: Claim, claims: Claims) -> str:
    columns = list(dict.fromkeys(trial.instead for trial in trials))
    rows: dict[str, list[str]] = {}
    for trial in trials:
        shown = figures_of(claim, trial.values)
        cells = rows.setdefault(_settings(trial.settings, "", claims), ["-"] * len(columns))
        cells[columns.index(trial.instead)] = f"**{shown}**" if trial.holds else shown
    heads = ["here"] if columns == [claim.itself] else columns
    return table(("assumed", *heads), [(words, *cells) for words, cells in rows.items()])


def _words(trial: Trial, claim: Claim, claims: Claims) -> str:
    assumes = claims.experiments[trial.experiment].assumes
    parts = [_settings(trial.settings, assumes, claims)]
    return "; ".join([*parts, trial.instead] if claim.instead else parts)


def _settings(settings: Mapping[str, Any], assumes: str, claims: Claims) -> str:
    """Return the settings of a trial in words; those that change together one by one."""
    words = [
        f"{claims.words.get(name, f'`{name}`')} {plain(value)}" for name, value in spread(settings).items()
    ]
    return "; ".join([*([assumes] if assumes else []), *words]) or "as configured"
