"""What one model costs on one kind of hardware, as measured: the figures that the scaling policy reads.

Paper sections 4.2 and 5.2 name them: T_p, T_f, the attention bandwidth, overheads outside the layers, and
T_prewarm. Times are for one layer or one step, as each field says, and depend on the rows of a step.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from dataclasses import asdict, dataclass
from typing import Any, Self

from kernelflume.core.errors import ConfigurationError
from kernelflume.core.figures import is_number, is_whole

SCHEMA_VERSION = 4
"""History: 1 = curves over rows, attention bandwidth and exchange time, prewarm time; 2 = the exchange time
is a curve too; 3 = what prompts take; 4 = what a further attention node adds. Earlier files are read: in 1
one exchange time counts at any number of rows, and what is not in a file is not known."""
_ONE_EXCHANGE_TIME = 1
"""The last schema with a number in place of that curve."""
_UNDERSTOOD = range(_ONE_EXCHANGE_TIME, SCHEMA_VERSION + 1)
_CURVES = ("projection_s", "post_attention_s", "step_overhead_s", "exchange_s")

_MOST = 1e15
"""More seconds or bytes a second than anything has; products of such figures are still numbers."""


def _is_figure(value: object) -> bool:
    """Tell whether a value can be a measured one. NaN is in no range."""
    return is_number(value) and 0 <= value <= _MOST


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds as a function of the rows of a step: straight lines between measured points."""

    points: tuple[tuple[float, float], ...]
    """(rows, seconds), rows ascending."""

    def __post_init__(self) -> None:
        if not self.points:
            raise ConfigurationError("profile: a curve has no points")
        rows = [row for row, _ in self.points]
        if any(later <= earlier for earlier, later in itertools.pairwise(rows)):
            raise ConfigurationError(f"profile: the rows of a curve do not ascend: {rows}")
        if any(not _is_figure(value) for point in self.points for value in point):
            raise ConfigurationError("profile: a curve has a value that is negative or no number")

    def at(self, rows: float) -> float:
        """Return the seconds at so many rows: level below the first point, the last slope beyond the last."""
        if rows <= self.points[0][0] or len(self.points) == 1:
            return self.points[0][1]
        after = min(bisect_left(self.points, (rows,)), len(self.points) - 1)
        (x0, y0), (x1, y1) = self.points[after - 1 : after + 1]
        return max(0.0, y0 + (y1 - y0) * (rows - x0) / (x1 - x0))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Where the time of a weight node's decode steps goes: medians of its latest ones, all of as many rows.

    Without microbatches a step is ``overhead_s`` and, for every layer, the three stages one after the other.
    Where a weight node chooses their number from step to step, ``step_s`` is as it was, and the stages are
    those that one microbatch of all rows has.
    """

    rows: int
    step_s: float
    """From the end of the step before to the end of the step."""
    projection_s: float
    """T_p: projection of Q, K and V, what precedes it and attention over the new tokens, one layer."""
    attention_s: float
    """The exposed part of T_A: dispatch of the queries and the wait for the partials, one layer."""
    post_attention_s: float
    """T_f: merge, W_O and FFN, one layer."""
    overhead_s: float
    """All of the step that is in no layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerformanceProfile:
    """Measured times of one model on one kind of weight node and one kind of attention node."""

    model_id: str
    hardware: str
    """For people: what it was measured on."""
    num_layers: int
    projection_s: Curve
    """T_p: projection of Q, K and V and what precedes it, one layer."""
    post_attention_s: Curve
    """T_f: merge, W_O and FFN, one layer."""
    step_overhead_s: Curve
    """Per-token overheads outside the layers: planning, head, sampling, emission; one step."""
    exchange_s: Curve
    """The part of T_A that does not grow with the KV: dispatch, launch, partial back; one layer."""
    attention_bytes_per_s: float
    """BW: bytes of keys and values that one attention node scans a second."""
    prewarm_s: float
    """T_prewarm: from the decision to a node that could be published."""
    prefill_s: Curve | None = None
    """From a prompt of so many tokens to its first token, on a stack that does nothing else; None where it
    was not measured. Only the simulator reads it."""
    further_node_share: float | None = None
    """By which share of a step a further attention node makes it longer, the same rows being spread over one
    more; None where it was not measured. Only the simulator reads it."""

    def __post_init__(self) -> None:
        for name in ("model_id", "hardware"):
            if not isinstance(getattr(self, name), str):
                raise ConfigurationError(f"profile: {name} must be text")
        if not (is_whole(self.num_layers) and 1 <= self.num_layers <= _MOST):
            raise ConfigurationError("profile: num_layers must be a whole number of at least 1")
        for name in ("attention_bytes_per_s", "prewarm_s"):
            value = getattr(self, name)
            if not _is_figure(value):
                raise ConfigurationError(f"profile: {name} must be a number from 0, not {value}")
        if self.further_node_share is not None and not _is_figure(self.further_node_share):
            raise ConfigurationError(
                f"profile: further_node_share must be a number from 0, not {self.further_node_share}"
            )
        if self.attention_bytes_per_s == 0:
            raise ConfigurationError("profile: attention_bytes_per_s must be above 0")

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form of a profile file; ``from_dict`` reads it back."""
        return {"schema": SCHEMA_VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """Read ``to_dict``'s form, or that of an earlier schema which is still understood.

        Raises:
            ConfigurationError: another schema, or a field is missing, unknown or out of range.
        """
        if not isinstance(fields, dict):
            raise ConfigurationError("profile: not a JSON object")
        values = dict(fields)
        schema = values.pop("schema", None)
        if schema not in _UNDERSTOOD:
            raise ConfigurationError(
                f"profile: schema {schema!r} is not {SCHEMA_VERSION}, nor one that is read: measure the "
                "model again with `kernelflume profile`"
            )
        try:
            if schema == _ONE_EXCHANGE_TIME:
                values["exchange_s"] = {"points": [[1.0, values["exchange_s"]]]}
            for name in (*_CURVES, *(() if values.get("prefill_s") is None else ("prefill_s",))):
                points = values[name]["points"]
                values[name] = Curve(tuple((float(rows), float(seconds)) for rows, seconds in points))
            return cls(**values)
        except KeyError as error:
            raise ConfigurationError(f"profile: {error} is missing") from error
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigurationError(f"profile: {error}") from error
