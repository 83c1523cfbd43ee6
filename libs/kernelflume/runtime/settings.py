"""Settings of a service: flags over environment over a YAML file over defaults, parsed once, then frozen."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)

from kernelflume.core.errors import ConfigurationError

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*$", re.IGNORECASE)
_UNIT_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str | int) -> int:
    """Read a size in bytes: a number, or a number with K, M, G, T (powers of 1024; KiB, MiB too).

    Raises:
        ValueError: the text is no size.
    """
    if isinstance(text, int):
        return text
    match = _SIZE.match(text)
    if match is None:
        raise ValueError(f"{text!r} is no size; write it like 512MiB, 2GiB or 1073741824")
    number, unit, _ = match.groups()
    return int(float(number) * 1024 ** _UNIT_POWER[unit.lower()])


ByteSize = Annotated[int, BeforeValidator(parse_size)]
"""A field that takes ``512MiB`` as well as a plain number of bytes."""


class ServiceSettings(BaseSettings):
    """What every service can be told. A subclass sets ``env_prefix`` in its ``model_config``."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        cli_implicit_flags=True,
        use_attribute_docstrings=True,
        nested_model_default_partial_update=True,
    )

    config: Path | None = None
    """YAML file with settings by their names; flags and environment override it."""
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    """Least severe level that is logged."""
    redis_url: str = "redis://127.0.0.1:6379/0"
    """Routing-table store."""
    cluster: str = Field(default="kernelflume", pattern="^[A-Za-z0-9_.-]+$")
    """Prefix of every key in the store, so that clusters can share one Redis."""
    exit_with_parent: bool = False
    """End when the parent process ends, however it ends; set by the process provider and `serve`."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the name is pydantic-settings' own
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources; the YAML file is named by a flag, so it is added by ``load``."""
        return init_settings, env_settings


S = TypeVar("S", bound=ServiceSettings)


def load(settings_class: type[S], argv: list[str], *, program: str) -> S:
    """Parse the settings of one service.

    Args:
        settings_class: what to parse into.
        argv: the command line without the program's name.
        program: the name shown in help.

    Raises:
        ConfigurationError: a value is bad; the message names each setting at fault.
    """

    class Sourced(settings_class):  # type: ignore[valid-type, misc]
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], **sources: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            flags: CliSettingsSource[Any] = CliSettingsSource(
                settings_cls, cli_parse_args=argv, cli_prog_name=program
            )
            ordered: list[PydanticBaseSettingsSource] = [flags, *super().settings_customise_sources(settings_cls, **sources)]
            path = flags().get("config") or sources["env_settings"]().get("config")
            if path:
                ordered.append(_yaml_source(settings_cls, Path(path)))
            return tuple(ordered)

    Sourced.__name__ = settings_class.__name__
    Sourced.__doc__ = settings_class.__doc__
    try:
        return Sourced()  # type: ignore[no-any-return]
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'settings'}: {fault['msg']}" for fault in error.errors()
        )
        raise ConfigurationError(faults) from error


def load_or_exit(settings_class: type[S], *, program: str, argv: list[str] | None = None) -> S:
    """Parse like ``load``; on a bad value print one line that names it and end the process with code 2."""
    try:
        return load(settings_class, sys.argv[1:] if argv is None else argv, program=program)
    except ConfigurationError as error:
        sys.stderr.write(f"{program}: {error}\n")
        raise SystemExit(2) from None


def _yaml_source(settings_class: type[BaseSettings], path: Path) -> YamlConfigSettingsSource:
    try:
        return YamlConfigSettingsSource(settings_class, yaml_file=path, yaml_file_encoding="utf-8") if path.is_file() else _missing(path)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"config: {path} is no YAML: {error}") from error


def _missing(path: Path) -> YamlConfigSettingsSource:
    raise ConfigurationError(f"config: {path} does not exist")
