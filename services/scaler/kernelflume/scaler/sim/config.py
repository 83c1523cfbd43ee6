"""What a simulation is asked to do: one YAML file, checked once."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - pydantic reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kernelflume.core.errors import ConfigurationError
from kernelflume.runtime.smallfile import MAX_BYTES
from kernelflume.runtime.yamltext import parse_mapping
from kernelflume.scaler.scaling_policy import ScalingPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=1, le=1_000_000)]
Dynamics = Literal["low", "medium", "high"]


class Section(BaseModel):
    """Settings that belong together; a name that is not known is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class TraceSource(Section):
    """Sessions of a trace file, plain or gzipped."""

    kind: Literal["sessions", "mooncake", "azure"]
    """`sessions`: one JSON object a session with its requests; `mooncake`: one JSON object a request;
    `azure`: a CSV with TIMESTAMP, ContextTokens, GeneratedTokens."""
    path: Path
    """Relative to the configuration's folder."""
    dynamics: Dynamics | None = None
    """Only sessions of this slice of the lengths; all of them if unset."""
    limit: _Count | None = None
    """So many sessions, drawn by the seed; all of them if unset."""
    maximum_context_tokens: _Count | None = None
    """Leave out sessions that ever hold more."""


class GeneratorSource(Section):
    """Sessions drawn from the published statistics of the paper's trace."""

    kind: Literal["generator"] = "generator"
    dynamics: Dynamics = "high"
    num_sessions: Annotated[int, Field(ge=0, le=1_000_000)] = 100
    maximum_context_tokens: _Count = 273_000
    """Where lengths are cut: the longest of the paper's trace."""
    context_scale: _Positive = 1.0
    """All lengths times this, for projections to longer contexts."""


class ClosedArrivals(Section):
    """So many sessions at any time: the next begins when one ends."""

    kind: Literal["closed"] = "closed"
    concurrency: _Count = 32


class PoissonArrivals(Section):
    """Sessions arrive at random, independently of each other."""

    kind: Literal["poisson"]
    sessions_per_s: _Positive


class TraceArrivals(Section):
    """Sessions arrive when the trace says."""

    kind: Literal["trace"]
    speed: _Positive = 1.0
    """Times are divided by it."""


class Workload(Section):
    """What is decoded, and when."""

    source: Annotated[TraceSource | GeneratorSource, Field(discriminator="kind")] = GeneratorSource()
    arrivals: Annotated[ClosedArrivals | PoissonArrivals | TraceArrivals, Field(discriminator="kind")] = (
        ClosedArrivals()
    )
    keep_between_turns: bool = True
    """KV of a session stays where it is while the client thinks; false drops it after each turn."""
    think: bool = False
    """Wait between turns as the trace says; false lets turns follow at once."""
    prefill_tokens_per_s: _Positive | None = None
    """How fast tokens that are not held yet become KV, elsewhere and not billed; unset: at once."""
    least_duration_s: _Seconds = 0.0
    """Bill at least so long, whatever the workload."""


class Price(Section):
    """What one GPU costs."""

    usd_per_gpu_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    source: Annotated[str, Field(min_length=1)]
    """Where the figure is from: it is printed with every result."""


class Fixed(Section):
    """A pool of weight-bearing ranks of a fixed number (paper section 6.4)."""

    kind: Literal["fixed"]
    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    size_for: Literal["average", "maximum"] = "maximum"
    """Ranks are as many as hold the mean, or the most, KV of the workload on an unbounded pool."""
    num_ranks: _Count | None = None
    """So many ranks instead."""
    admission: Literal["current", "peak"] = "current"
    """A turn needs room for its prompt, or for all it will ever hold."""
    migrates: bool = False
    """A sequence that outgrows its instance moves to another with room; false recomputes it later."""


class Instances(Section):
    """Full instances that come and go, in the manner of ServerlessLLM (paper section 6.4)."""

    kind: Literal["instances"]
    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    ranks_per_instance: _Count = 1
    """CP: GPUs, or tensor-parallel groups, that share the KV of an instance."""
    minimum_instances: _Count = 1
    maximum_instances: _Count = 64
    startup_s: _Seconds = 1.1
    """From the decision to an instance that decodes. The paper: 1.1 s by its loader, 10.8 s from disk."""
    bills_startup: bool = True
    trigger_utilisation: Annotated[float, Field(gt=0, le=1)] | None = None
    """Start one more when held KV exceeds this share of the capacity; unset: when a turn finds no room."""
    admission: Literal["current", "peak"] = "current"
    placement: Literal["emptiest", "fullest"] = "emptiest"
    """Among instances with room: the one with the most of it, or with the least, so that others may end."""
    migrates: bool = False
    scale_in_idle_s: _Seconds = 60.0
    """An instance that holds nothing for so long ends. The policy's cooldown is as long."""


class KernelFlume(Section):
    """Weight nodes and attention nodes under the live policy."""

    kind: Literal["kernelflume"]
    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    attention_hardware: str | None = None
    """Of attention nodes; unset: as the weight node."""
    attention_gpus: _Count = 1
    """GPUs of one attention node; heads are divided among them."""
    policy: ScalingPolicy = ScalingPolicy()
    """As the live scaler's; its SLO is the simulation's unless it names one."""
    prewarm_s: _Seconds = 0.412
    """From the decision to a node that can be published. The paper: 412 ms from scratch."""
    look_s: _Positive = 0.25
    """Between two looks of the scaler, as live."""
    exchange_latency_s: _Seconds = 22e-6
    """A layer's exchange without its bytes: 618 us on one GPU, 640 us apart, on two H200 of one host."""
    query_first: bool = True
    """Attention begins before K and V are projected."""
    microbatches: tuple[Literal[1, 2, 4], ...] = (1, 2)
    """Numbers of microbatches to choose from."""
    spread_tokens: _Count = 1024
    """Prompts of twice as many are spread over nodes."""


Strategy = Annotated[Fixed | Instances | KernelFlume, Field(discriminator="kind")]


class SimulationConfig(Section):
    """One simulation: a workload, hardware with prices, and the strategies to compare on it."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    seed: Annotated[int, Field(ge=0)] = 0
    model: str
    """A profile of the package, or a YAML file."""
    weight_dtype_bytes: Annotated[float, Field(gt=0, le=4)] = 2.0
    """Bytes of one weight: 1 for FP8."""
    hardware: str
    """Of weight nodes and of instances: a profile of the package, or a YAML file."""
    tensor_parallel: _Count = 1
    """GPUs of one weight node or rank."""
    link: Literal["intra", "inter"] = "intra"
    """Between weight and attention nodes, and between ranks."""
    reserve_gb: Annotated[float, Field(ge=0)] = 1.0
    """Memory of each GPU that is for neither weights nor KV. The paper: 47 of 48 GB hold KV on an A6000."""
    kernel_tables: Path | None = None
    """Folder with measured kernel times; unset, or without a table of the hardware: a roofline."""
    step_overhead_s: _Seconds = 1e-3
    """Of each step outside the layers, besides the head: planning, sampling, emission."""
    tpot_slo_s: _Positive
    prices: dict[str, Price]
    """By the name of the hardware."""
    workload: Workload = Workload()
    strategies: Annotated[tuple[Strategy, ...], Field(min_length=1)]
    sweep: dict[str, tuple[Any, ...]] = {}
    """For `sim sweep`: dotted settings and their values; each combination is run. Strategies go by name."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [strategy.name for strategy in self.strategies]
        if len(set(names)) < len(names):
            raise ValueError("two strategies have one name")
        wanted = {self.hardware} | {
            strategy.attention_hardware
            for strategy in self.strategies
            if isinstance(strategy, KernelFlume) and strategy.attention_hardware
        }
        if missing := sorted(wanted - self.prices.keys()):
            raise ValueError(f"prices: none for {', '.join(missing)}")
        return self


def parse_config(text: str) -> SimulationConfig:
    """Read the YAML form.

    Raises:
        ConfigurationError: it is no mapping, or a setting is unknown or out of range; each is named.
    """
    return config_of(parse_mapping(text))


def config_of(fields: Mapping[str, Any]) -> SimulationConfig:
    """Check a mapping of settings.

    Raises:
        ConfigurationError: a setting is unknown or out of range; each is named.
    """
    try:
        return SimulationConfig.model_validate(fields)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg'].removeprefix('Value error, ')}".lstrip(": ")
            for fault in error.errors()
        )
        raise ConfigurationError(faults) from error


def read_text(path: Path) -> str:
    """Return the text of a configuration or profile file.

    Raises:
        ConfigurationError: it cannot be read, or is too long.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigurationError(f"{path}: longer than {MAX_BYTES // 1024} KiB")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
