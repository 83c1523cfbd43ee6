"""Our figure of a claim: taken from simulated rows, or from a file of measured results."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.reproduction.claims import Quoted

from kernelflume.core.errors import ConfigurationError
from kernelflume.scaler.sim.sweep import spread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.reproduction.claims import Simulated, Tabled

_SESSIONS, _CONTEXT = "workload.source.num_sessions", "workload.source.context_tokens"
RESULTS = Path(__file__).parents[1] / "results"


def simulated(figure: Simulated, rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the values of a figure, one a row, or one for each value of the setting it is a mean over.

    Rows in which a strategy that counts had to refuse tokens have none.

    Raises:
        ConfigurationError: no row has the figure.
    """
    if figure.kind == "overlap":
        return _overlaps(figure, rows)
    groups: dict[Any, list[float]] = defaultdict(list)
    for index, row in enumerate(rows):
        if any(row["settings"].get(name) not in values for name, values in figure.only.items()):
            continue
        key = row["settings"][figure.mean_by] if figure.mean_by else index
        value = _value(figure, row)
        if value is not None:
            groups[key].append(value * figure.scale)
    if not groups:
        raise ConfigurationError(f"{figure.experiment}: no row has {figure.kind} of {figure.strategy}")
    return [sum(values) / len(values) for values in groups.values()]


def _overlaps(figure: Simulated, rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return, for each batch and context, the gain of two microbatches over one after the other."""
    [paired] = figure.than
    steps: dict[tuple[str, int, int], dict[str, float]] = {}
    for row in rows:
        settings = spread(row["settings"])
        sessions, context = settings.pop(_SESSIONS), settings.pop(_CONTEXT)
        steps[repr(settings), context, sessions] = {
            # Where turns waited, the nodes had no room for them.
            result["strategy"]: result["step_p50_s"]
            for result in row["results"]
            if not result["num_waits"]
        }
    most: dict[tuple[int, int], float] = {}
    for (others, context, sessions), own in steps.items():
        both = steps.get((others, context, 2 * sessions), {})
        if figure.strategy in own and paired in both:
            gain = 2 * own[figure.strategy] / both[paired]
            most[context, sessions] = max(gain, most.get((context, sessions), 0.0))
    return list(most.values())


def _value(figure: Simulated, row: Mapping[str, Any]) -> float | None:
    by_name = {result["strategy"]: result for result in row["results"]}
    own = by_name[figure.strategy]
    others = [by_name[name] for name in figure.than]
    if any(result["refused_tokens"] for result in (own, *others)):
        return None
    if figure.without_waits and any(result["num_waits"] for result in (own, *others)):
        return None
    match figure.kind:
        case "value":
            return float(own[figure.field])
        case "ratio":
            return float(own[figure.field] / min(other[figure.field] for other in others))
        case "cut":
            return float(100 * (1 - own[figure.field] / min(other[figure.field] for other in others)))
        case "step_at":
            seconds = own["step_s_by_nodes"].get(str(figure.nodes))
            return None if seconds is None else 1e3 * float(seconds)
        case "flat":
            steps = own["step_s_by_nodes"]
            return float(max(step_s for count, step_s in steps.items() if int(count) > 1) / steps["2"])
        case "capacity_gb":
            gpu_tokens = own["node_capacity_tokens"] / own["attention_gpus"]
            return float(figure.nodes * gpu_tokens * row["token_bytes"] / 1e9)
        case "density":
            rank = row["rank_capacity_tokens"] / row["rank_gpus"]
            return float(own["node_capacity_tokens"] / own["attention_gpus"] / rank)
        case "weights_gb":
            return float(row["weight_bytes"] / row["rank_gpus"] / 1e9)
        case "rank_kv_gb":
            return float(row["rank_capacity_tokens"] * row["token_bytes"] / row["rank_gpus"] / 1e9)
        case "overlap":
            raise ConfigurationError(f"{figure.experiment}: {figure.kind} is of several rows")


def measured(figure: Quoted | Tabled, folder: Path = RESULTS) -> list[float]:
    """Return the values of a measured figure.

    Raises:
        ConfigurationError: the file does not say so any longer.
    """
    text = (folder / figure.file).read_text(encoding="utf-8")
    if isinstance(figure, Quoted):
        if " ".join(figure.quote.split()) not in " ".join(text.split()):
            raise ConfigurationError(f"{figure.file}: does not say: {figure.quote}")
        return list(figure.values)
    cells = _cells(text, figure)
    means = []
    for beginning in figure.rows:
        chosen = [value for name, value in cells if name.startswith(beginning)]
        if not chosen:
            raise ConfigurationError(f"{figure.file}: no row {beginning}")
        means.append((sum(chosen) / len(chosen) + figure.shift) * figure.scale)
    return means


def _cells(text: str, figure: Tabled) -> list[tuple[str, float]]:
    """Return the first cell and the figure of each row of the tables that have the column."""
    wanted = [figure.column, *([figure.minus] if figure.minus else [])]
    cells: list[tuple[str, float]] = []
    head: list[str] | None = None
    for line in text.splitlines():
        if not line.startswith("|"):
            head = None
            continue
        row = [cell.strip(" `") for cell in line.strip("|").split("|")]
        if head is None:
            head = row
        elif all(name in head[1:] for name in wanted):
            try:
                values = [float(row[head.index(name)]) for name in wanted]
            except ValueError:
                continue  # a rule, or a cell without a figure
            cells.append((row[0], values[0] - sum(values[1:])))
    return cells
