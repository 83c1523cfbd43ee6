"""What an operator sets: the objective, the bounds and the patience of automatic scaling.

One YAML file, or the text of a ``SetPolicy`` call. A value is checked here once; everything else takes it as
given.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from kernelflume.core.errors import ConfigurationError, InvalidRequestError
from kernelflume.runtime.yamltext import parse_mapping
from kernelflume.scaler.providers.settings import ProviderSection

_MOST_NODES = 4096
"""More attention nodes than any pool has: a number beyond it is a slip, and would exhaust the machine."""


def _no_truth(value: Any) -> Any:
    """Refuse what YAML takes for true or false, such as ``yes``, for a number: it would count as 1."""
    if isinstance(value, bool):
        raise ValueError("Input should be a number, not true or false")  # noqa: TRY004 - pydantic wants it
    return value


_Number = BeforeValidator(_no_truth)
_Count = Annotated[int, _Number, Field(ge=1, le=_MOST_NODES)]
_Share = Annotated[float, _Number, Field(gt=0, le=1)]
_Amount = Annotated[float, _Number, Field(ge=0, allow_inf_nan=False)]


class ScalingPolicy(BaseModel):
    """Automatic scaling of the attention pool (paper section 4.2)."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, strict=False)

    automatic: bool = True
    """Scale by growth; false leaves the number of nodes to people."""

    minimum_nodes: _Count = 1
    """Fewest active nodes; silence goes back to it."""
    maximum_nodes: _Count = 16
    """Most active nodes."""
    maximum_nodes_at_once: _Count = 4
    """Most nodes that one operation adds."""
    node_cost_per_hour: _Amount = 0.0
    """Price of one attention node, in any currency."""
    maximum_cost_per_hour: _Amount = 0.0
    """Most that all active nodes may cost together; 0 for no limit."""

    tpot_slo_s: Annotated[float, _Number, Field(gt=0, allow_inf_nan=False)] | None = None
    """T_slo, seconds a token. It needs a profile; without one, or unset, memory alone counts."""
    beta_memory: _Share = 0.9
    """Share of a node's KV capacity that is planned with: the rest is for fragmentation and bursts."""
    beta_slo: _Share = 0.85
    """Share of the attention time that is planned with: the rest is for jitter and errors of the profile."""
    microbatches: tuple[Literal[1, 2, 4], ...] = (1,)
    """Numbers of microbatches that weight nodes choose from; the best one says what time the SLO leaves for
    attention. With one it is what projections leave of a layer; with several both overlap."""
    gamma: _Share = 0.85
    """Activation watermark: a prewarmed node is published once the pool holds this share of its threshold."""
    prewarm_margin: Annotated[float, _Number, Field(ge=1, allow_inf_nan=False)] = 1.5
    """A node is prewarmed when the pool would be full within this many times T_prewarm."""

    scale_down_fraction: _Share = 0.7
    """A node goes only if the others would hold at most this share of their threshold."""
    scale_down_cooldown_s: _Amount = 60.0
    """How long it must have been possible to go down, and the pool unchanged, before a node goes."""
    silence_s: _Amount = 60.0
    """Without any request for this long the pool goes to its minimum."""
    manual_hold_s: _Amount = 0.0
    """Automatic scaling resumes this long after a manual target; 0 waits for ResumeAutomaticScaling."""

    provider: ProviderSection = ProviderSection()
    """Where nodes come from, as far as the scaler's own settings are not to say. No decision reads it."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.minimum_nodes > self.maximum_nodes:
            raise ValueError(
                f"minimum_nodes {self.minimum_nodes} is above maximum_nodes {self.maximum_nodes}"
            )
        if self.maximum_cost_per_hour and not self.node_cost_per_hour:
            raise ValueError("maximum_cost_per_hour needs node_cost_per_hour")
        if self.most_nodes < self.minimum_nodes:
            raise ValueError(
                f"maximum_cost_per_hour {self.maximum_cost_per_hour:g} does not pay for minimum_nodes "
                f"{self.minimum_nodes} at node_cost_per_hour {self.node_cost_per_hour:g}"
            )
        return self

    @property
    def most_nodes(self) -> int:
        """Most active nodes, the cost considered."""
        if not self.maximum_cost_per_hour:
            return self.maximum_nodes
        affordable = self.maximum_cost_per_hour / self.node_cost_per_hour + 1e-9  # infinite for a tiny price
        return self.maximum_nodes if affordable >= self.maximum_nodes else math.floor(affordable)

    def fault_of(self, number: int) -> str:
        """Return what is wrong with a number of active nodes, or '' if it is within the bounds."""
        if self.minimum_nodes <= number <= self.most_nodes:
            return ""
        return f"must be from {self.minimum_nodes} to {self.most_nodes}, not {number}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the YAML form.

        Raises:
            InvalidRequestError: it is no mapping, or a setting is unknown or out of range; each is named.
        """
        try:
            return cls.model_validate(parse_mapping(text))
        except ConfigurationError as error:
            raise InvalidRequestError(f"policy: {error}", parameter="policy") from error
        except ValidationError as error:
            raise InvalidRequestError(f"policy: {_words(error)}", parameter="policy") from error

    def to_yaml(self) -> str:
        """Return the form that ``parse`` reads back; of the provider section, what it gives."""
        fields = self.model_dump(exclude={"provider"})
        fields["provider"] = self.provider.model_dump(exclude_unset=True)
        return str(yaml.safe_dump(fields, sort_keys=False))


def _words(error: ValidationError) -> str:
    def one(fault: Any) -> str:
        where = ".".join(str(part) for part in fault["loc"])
        message = str(fault["msg"]).removeprefix("Value error, ")
        return f"{where}: {message}" if where else message

    return "; ".join(one(fault) for fault in error.errors())
