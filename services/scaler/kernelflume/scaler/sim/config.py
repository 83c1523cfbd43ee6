"""What a simulation is asked to do: one YAML file, checked once."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - pydantic reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from kernelflume.core.errors import ConfigurationError
from kernelflume.runtime.smallfile import MAX_BYTES
from kernelflume.runtime.yamltext import parse_mapping
from kernelflume.scaler.sim.section import Count, Positive, Seconds, Section
from kernelflume.scaler.sim.strategy_settings import KernelFlume, Strategy
from kernelflume.scaler.sim.workload_settings import Workload

if TYPE_CHECKING:
    from collections.abc import Mapping


class Price(Section):
    """What one GPU costs."""

    usd_per_gpu_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    source: Annotated[str, Field(min_length=1)]
    """Where the figure is from: it is printed with every result."""


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
    tensor_parallel: Count = 1
    """GPUs of one weight node or rank."""
    link: Literal["intra", "inter"] = "intra"
    """Between weight and attention nodes, and between ranks."""
    reserve_gb: Annotated[float, Field(ge=0)] = 1.0
    """Memory of each GPU that is for neither weights nor KV. The paper: 47 of 48 GB hold KV on an A6000."""
    kernel_tables: Path | None = None
    """Folder with measured kernel times; unset, or without a table of the hardware: a roofline."""
    step_overhead_s: Seconds = 1e-3
    """Of each step outside the layers, besides the head: planning, sampling, emission."""
    tpot_slo_s: Positive
    prices: dict[str, Price]
    """By the name of the hardware."""
    workload: Workload = Workload()
    strategies: Annotated[tuple[Strategy, ...], Field(min_length=1)]
    sweep: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    """For `sim sweep`: dotted settings and their values; each combination is run. Strategies go by name."""
    vary: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    """For `sim sweep`: settings of which one at a time takes each of its values; first of all none does."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [strategy.name for strategy in self.strategies]
        if len(set(names)) < len(names):
            raise ValueError("two strategies have one name")
        flumes = [strategy for strategy in self.strategies if isinstance(strategy, KernelFlume)]
        wanted = {self.hardware} | {
            strategy.attention_price or strategy.attention_hardware or self.hardware for strategy in flumes
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
