"""Settings of a service: flags over environment over a YAML file over defaults, parsed once, then frozen."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from kernelflume.core.errors import ConfigurationError
from kernelflume.core.figures import is_whole
from kernelflume.core.geometry import KvGeometry
from kernelflume.runtime.tls import TlsSettings
from kernelflume.runtime.tracing import TracingSettings
from kernelflume.runtime.yamltext import parse_mapping

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*$", re.IGNORECASE)
_UNIT_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str | int) -> int:
    """Read a size in bytes: a number, or a number with K, M, G, T (powers of 1024; KiB, MiB too).

    Raises:
        ValueError: the text is no size.
    """
    if is_whole(text):
        return text
    match = _SIZE.match(str(text))
    if match is None:
        raise ValueError(f"{str(text)!r} is no size; write it like 512MiB, 2GiB or 1073741824")
    number, unit, _ = match.groups()
    return int(float(number) * 1024 ** _UNIT_POWER[unit.lower()])


ByteSize = Annotated[int, BeforeValidator(parse_size), Field(ge=0)]
"""A field that takes ``512MiB`` as well as a plain number of bytes."""


def _as_json(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict) else value


def _check_geometry(text: str) -> str:
    try:
        if text:
            KvGeometry.from_json(text)
    except ConfigurationError as error:
        raise ValueError(str(error)) from error
    return text


GeometryJson = Annotated[str, BeforeValidator(_as_json), AfterValidator(_check_geometry)]
"""A field that holds a ``KvGeometry`` as JSON text, or is empty; a YAML file may write it as a mapping."""


class ServiceSettings(BaseSettings):
    """What every service can be told. A subclass sets ``env_prefix`` in its ``model_config``."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        cli_implicit_flags=True,
        cli_show_env_vars=True,
        env_nested_delimiter="__",
        nested_model_default_partial_update=True,
        use_attribute_docstrings=True,
        # A setting may be called model_...; pydantic keeps that prefix for itself otherwise.
        protected_namespaces=(),
    )

    config: Path | None = None
    """YAML file with settings by their names; flags and environment override it."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is logged."""
    redis_url: str = Field(default="redis://127.0.0.1:6379/0", pattern="^(redis|rediss|unix)://")
    """Routing-table store."""
    cluster: str = Field(default="kernelflume", pattern="^[A-Za-z0-9_.-]+$")
    """Prefix of every key in the store, so that clusters can share one Redis."""
    exit_with_parent: bool = False
    """End when the parent process ends, however it ends."""
    tls: TlsSettings = TlsSettings()
    """Security of gRPC, as a server and in calls to other services."""
    tracing: TracingSettings = TracingSettings()
    """Traces of requests and scale operations."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the names are pydantic-settings' own
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Keep arguments over environment; no .env file and no secrets folder is read behind one's back."""
        return init_settings, env_settings


def service_environment(service: str) -> dict[str, str]:
    """Return those variables of this process that set a service, to be passed on to its machine."""
    prefix = f"KERNELFLUME_{service.upper()}_"
    return {name: value for name, value in os.environ.items() if name.startswith(prefix)}


S = TypeVar("S", bound=ServiceSettings)


@dataclass(frozen=True, slots=True)
class _Source:
    """Values of one source, and how a person calls the setting ``name`` there."""

    values: dict[str, Any]
    label: str

    def call(self, name: str) -> str:
        return self.label.format(flag=name.replace("_", "-"), variable=name.upper(), name=name)


def load(settings_class: type[S], argv: list[str], *, program: str) -> S:
    """Parse the settings of one service.

    Args:
        settings_class: what to parse into.
        argv: the command line without the program's name.
        program: the name shown in help.

    Raises:
        ConfigurationError: a value is bad; the message names each setting at fault as it was given.
        SystemExit: argv asks for help (code 0) or has an unknown flag (code 2).
    """
    prefix = settings_class.model_config.get("env_prefix", "")
    try:
        flags = CliSettingsSource(settings_class, cli_parse_args=argv, cli_prog_name=program)()
        environment = EnvSettingsSource(settings_class)()
    except SettingsError as error:
        # A list or a group that is no JSON; the message names the field and its source.
        raise ConfigurationError(f"{error}: {error.__cause__}") from error
    path = flags.get("config") or environment.get("config")
    sources = [
        _Source(_read_yaml(Path(path)) if path else {}, f"{{name}} in {path}"),
        _Source(environment, f"{prefix}{{variable}}"),
        _Source(flags, "--{flag}"),
    ]
    merged: dict[str, Any] = {}
    for source in sources:
        merged = _merge(merged, source.values)
    try:
        return settings_class(**merged)
    except ValidationError as error:
        faults = "; ".join(_explain(fault, sources) for fault in error.errors())
        raise ConfigurationError(faults) from error


def load_or_exit(settings_class: type[S], *, program: str, argv: list[str] | None = None) -> S:
    """Parse like ``load``; on a bad value print one line that names it and end the process with code 2."""
    try:
        return load(settings_class, sys.argv[1:] if argv is None else argv, program=program)
    except ConfigurationError as error:
        sys.stderr.write(f"{program}: {error}\n")
        raise SystemExit(2) from None


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = parse_mapping(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"--config: cannot read {path}: {error.strerror}") from error
    except (ConfigurationError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--config: {path}: {error}") from error
    # A person copies names from flags as well as from code.
    return {name.replace("-", "_"): value for name, value in values.items()}


def _merge(low: dict[str, Any], high: dict[str, Any]) -> dict[str, Any]:
    """Return ``low`` updated with ``high``, group by group: one field of a group can be given alone."""
    merged = dict(low)
    for name, value in high.items():
        below = merged.get(name)
        both_groups = isinstance(below, dict) and isinstance(value, dict)
        merged[name] = _merge(below, value) if both_groups else value  # type: ignore[arg-type]
    return merged


def _explain(fault: ErrorDetails, sources: list[_Source]) -> str:
    location = [str(part) for part in fault["loc"]]
    if not location:
        return fault["msg"].removeprefix("Value error, ")
    name = location[0]
    yaml_file, environment, flags = sources
    if fault["type"] == "missing":
        return f"{flags.call('.'.join(location))} (or {environment.call('__'.join(location))}) is required"
    given = next((source for source in (flags, environment, yaml_file) if name in source.values), flags)
    told = ".".join([given.call(name), *location[1:]])
    if fault["type"] == "extra_forbidden":
        return f"{told}: there is no such setting"
    message = fault["msg"].removeprefix("Value error, ")
    return f"{told}: {message[:1].lower()}{message[1:]}"
