"""A report as one HTML file: readable on a phone, in the dark, and without a network."""

from __future__ import annotations

from collections import Counter
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from itertools import groupby
from typing import TYPE_CHECKING, Any

import yaml

from kernelflume.scaler.sim.assumptions import assumptions
from kernelflume.scaler.sim.report import COLUMNS, TEXT_COLUMNS, cells, sweep_rows
from kernelflume.scaler.sim.svg import embedded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jinja2 import Template

    from kernelflume.scaler.sim.report import Swept
    from kernelflume.scaler.sim.result import Result
    from kernelflume.scaler.sim.simulation import Simulator

_COST_TITLES = {"cost": "Cost", "cost-slo": "Cost against tokens within the SLO"}


def is_available() -> bool:
    """Tell whether jinja2 is installed."""
    return find_spec("jinja2") is not None


def run_page(simulator: Simulator, results: Sequence[Result], plots: Mapping[str, str]) -> str:
    """Return the report of one run.

    Args:
        simulator: that ran.
        results: of its strategies.
        plots: SVG by name, as ``plots.draw_run`` gives them; none where they cannot be drawn.
    """
    config = simulator.config
    return _template().render(
        title=config.name,
        subtitle=f"{simulator.model.name} on {simulator.hardware.name}, "
        f"objective {config.tpot_slo_s * 1e3:g} ms a token",
        results={"head": COLUMNS, "rows": [cells(result) for result in results], "texts": TEXT_COLUMNS},
        costs=_costs(plots),
        runs=[_over_time(result, plots.get(f"timeline-{result.strategy}")) for result in results],
        facts=_facts(simulator),
        assumptions=_assumptions(),
        configuration=_yaml(config.model_dump(mode="json")),
        version=version("kernelflume"),
    )


def sweep_page(fields: Mapping[str, Any], swept: Sequence[Swept], plots: Mapping[str, str]) -> str:
    """Return the report of a sweep.

    Args:
        fields: the configuration as it was read, its section `sweep` included.
        swept: all combinations.
        plots: SVG by name, as ``plots.draw_costs`` gives them; none where they cannot be drawn.
    """
    names, rows = sweep_rows(swept)
    changed = dict.fromkeys(name for one in swept for name in one.chosen)
    return _template().render(
        title=f"{fields['name']}: sweep",
        subtitle=f"{len(swept)} combinations of {', '.join(changed)}",
        results={"head": (*names, *COLUMNS), "rows": rows, "texts": len(names) + TEXT_COLUMNS},
        costs=_costs(plots),
        runs=[],
        facts=[
            ("model", fields["model"], "profile"),
            ("hardware", fields["hardware"], "profile"),
            *_prices(fields),
        ],
        assumptions=_assumptions(),
        configuration=_yaml(fields),
        version=version("kernelflume"),
    )


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - optional

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    source = files("kernelflume.scaler.sim") / "data" / "report.html.j2"
    return environment.from_string(source.read_text(encoding="utf-8"))


def _facts(simulator: Simulator) -> list[tuple[str, str, str]]:
    """Return what a run rests on: what, the figure, and where it is from."""
    config, model, demand = simulator.config, simulator.model, simulator.demand
    hardware = simulator.hardware
    measured = ", ".join(name for name, is_measured in simulator.kernels.measured.items() if is_measured)
    left_out = f"; {demand.num_left_out:,} sessions are too long" if demand.num_left_out else ""
    return [
        ("model", f"{model.name}, {config.weight_dtype_bytes:g} bytes a weight", model.source),
        ("hardware", f"{hardware.name}, {config.tensor_parallel} a weight node or rank", hardware.source),
        (
            "kernels",
            f"measured: {measured}; the others by roofline" if measured else "by roofline",
            "tables of the hardware, and the assumptions below" if measured else "the assumptions below",
        ),
        (
            "KV beside the weights of a rank",
            f"{simulator.rank_capacity_tokens:,} tokens of {model.token_bytes:,} bytes",
            "memory of its GPUs without weights and reserve",
        ),
        (
            "sessions",
            f"{len(demand.sessions):,}, which decode {demand.output_tokens:,} tokens{left_out}",
            f"{config.workload.source.kind}, seed {config.seed}",
        ),
        *_prices(config.model_dump(mode="json")),
    ]


def _costs(plots: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {"title": title, "svg": _drawing(plots[name], name, title)}
        for name, title in _COST_TITLES.items()
        if name in plots
    ]


def _over_time(result: Result, svg: str | None) -> dict[str, Any]:
    title = f"{result.strategy}: {result.layout}"
    counts = Counter(change.reason for change in result.timeline.changes)
    return {
        "title": title,
        "svg": _drawing(svg, result.strategy, f"{title}, KV and time per token") if svg is not None else None,
        "changes": f"{result.num_changes} scale events"
        + (": " + ", ".join(f"{count} {reason}" for reason, count in counts.most_common()) if counts else ""),
    }


def _drawing(svg: str, name: str, title: str) -> Any:
    """Mark a drawing as one: its words were escaped when it was drawn."""
    from markupsafe import Markup  # noqa: PLC0415 - comes with jinja2

    return Markup(embedded(svg, name, title))  # noqa: S704 - by matplotlib, no text of a user


def _prices(fields: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (f"price of {name}", f"${price['usd_per_gpu_hour']:g} a GPU-hour", price["source"])
        for name, price in sorted(fields["prices"].items())
    ]


def _assumptions() -> list[tuple[str, list[tuple[str, str]]]]:
    return [
        (topic, [(entry.assumption, entry.source) for entry in entries])
        for topic, entries in groupby(assumptions(), lambda entry: entry.topic)
    ]


def _yaml(fields: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(fields), sort_keys=False, allow_unicode=True, width=100)
