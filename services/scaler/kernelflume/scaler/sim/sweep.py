"""Runs of one configuration under every combination of some settings. Pure."""

from __future__ import annotations

import itertools
import math
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from kernelflume.core.errors import ConfigurationError
from kernelflume.scaler.sim.config import config_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kernelflume.scaler.sim.config import SimulationConfig

_MOST_RUNS = 10_000


def combinations(fields: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], SimulationConfig]]:
    """Yield each combination of the sections `sweep` and `vary`: its settings and configuration.

    A setting is dotted: ``workload.source.dynamics``; in ``strategies`` a strategy goes by its name. Several
    that change together are named with commas between them, and each of their values is a list.

    Raises:
        ConfigurationError: there is nothing to sweep, too much, or a combination is no good.
    """
    base = config_of(fields)
    grid, alone = base.sweep, base.vary
    if not (grid or alone) or not all([*grid.values(), *alone.values()]):
        raise ConfigurationError("sweep: needs settings with at least one value each")
    singles = [{}, *({name: value} for name, values in alone.items() for value in values)]
    num_runs = math.prod(len(values) for values in grid.values()) * len(singles)
    if num_runs > _MOST_RUNS:
        raise ConfigurationError(f"sweep: {num_runs} combinations are more than {_MOST_RUNS}")
    for values, single in itertools.product(itertools.product(*grid.values()), singles):
        chosen: dict[str, Any] = {**dict(zip(grid, values, strict=True)), **single}
        changed = deepcopy(dict(fields))
        changed.pop("sweep", None)
        changed.pop("vary", None)
        for name, value in chosen.items():
            _set_together(changed, name, value)
        yield chosen, config_of(changed)


def spread(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a combination one by one, those that change together as well."""
    each: dict[str, Any] = {}
    for names, values in chosen.items():
        several = [name.strip() for name in names.split(",")]
        each.update(zip(several, values, strict=True) if len(several) > 1 else [(names, values)])
    return each


def set_setting(fields: dict[str, Any], name: str, value: Any) -> None:
    """Change a dotted setting of a configuration in place.

    Raises:
        ConfigurationError: there is no such place.
    """
    where: Any = fields
    *folders, last = name.split(".")
    for folder in folders:
        if isinstance(where, list):
            where = next((entry for entry in where if entry.get("name") == folder), None)
        elif isinstance(where, dict):
            where = where.setdefault(folder, {})
        if not isinstance(where, dict | list):
            raise ConfigurationError(f"sweep: there is no {name}")
    if not isinstance(where, dict):
        raise ConfigurationError(f"sweep: {name} is no setting")
    where[last] = value


def _set_together(fields: dict[str, Any], names: str, values: Any) -> None:
    if "," not in names:
        set_setting(fields, names, values)
        return
    each = [name.strip() for name in names.split(",")]
    if not isinstance(values, list | tuple) or len(values) != len(each):
        raise ConfigurationError(f"sweep: {names} needs lists of {len(each)} values, not {values!r}")
    for name, value in zip(each, values, strict=True):
        set_setting(fields, name, value)
