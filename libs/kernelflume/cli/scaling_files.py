"""The files that `kernelflume serve` hands to its scaler: the scaling policy and the performance profile."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernelflume.core.errors import ConfigurationError
from kernelflume.core.figures import is_number, is_whole
from kernelflume.runtime.settings import parse_size
from kernelflume.runtime.smallfile import read_small_file
from kernelflume.runtime.yamltext import parse_mapping

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_ATTENTION_NODES = 2
"""How many a stack without a policy begins with."""
DEFAULT_MINIMUM_NODES = 1
DEFAULT_MAXIMUM_NODES = 16
"""What a policy has that does not name its minimum or its maximum."""
PROVIDERS = ("process", "ray")
"""Where the attention nodes of a stack may run, the default first."""
POLICY_FLAG = "--scaling-policy"
PROFILE_FLAG = "--profile"


def readable(flag: str, path: Path | None) -> Path | None:
    """Return the absolute path of a file that can be read, or None for none.

    Raises:
        ConfigurationError: it cannot; the message names the flag.
    """
    if path is None:
        return None
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            # Opening a pipe would wait for its writer, and what it says can be read only once.
            raise ConfigurationError(f"{flag}: {path} is no regular file")
        with path.open("rb"):
            return path.absolute()
    except OSError as error:
        raise ConfigurationError(f"{flag}: cannot read {path}: {error.strerror}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFacts:
    """What a stack must know of its scaling policy before anything starts; the scaler reads the rest.

    The defaults are those of a stack without a policy.
    """

    path: Path | None = None
    minimum_nodes: int = DEFAULT_ATTENTION_NODES
    """What a stack begins with where no number was asked for."""
    most_nodes: int = 0
    """What the policy may grow to, its cost considered; 0 without one."""
    num_standby: int = 0
    node_memory_bytes: int | None = None
    """Given in place of --attention-node-memory."""
    node_threads: int = 0
    """Given in place of a share of the cores; 0 for none."""
    provider: str | None = None
    ray_address: str | None = None


def read_facts(path: Path | None) -> PolicyFacts:
    """Read a policy file, if there is one, as far as a stack needs it.

    Raises:
        ConfigurationError: it is no YAML mapping, or a setting that is needed here is out of range.
    """
    if path is None:
        return PolicyFacts()
    try:
        fields = parse_mapping(read_small_file(path))
    except ConfigurationError as error:
        raise ConfigurationError(f"{POLICY_FLAG}: {path}: {error}") from error
    policy = _Section(path, "", fields)
    minimum = policy.number("minimum_nodes", DEFAULT_MINIMUM_NODES, least=1)
    most = policy.number("maximum_nodes", DEFAULT_MAXIMUM_NODES, least=1)
    budget, price = policy.price("maximum_cost_per_hour"), policy.price("node_cost_per_hour")
    if budget and price:
        most = math.floor(min(most, budget / price + 1e-9))  # infinite for a tiny price
    provider = policy.section("provider")
    return PolicyFacts(
        path=path,
        minimum_nodes=minimum,
        most_nodes=max(minimum, most),
        num_standby=provider.number("standby_nodes", 0, least=0),
        node_memory_bytes=provider.size("node_memory"),
        node_threads=provider.number("node_threads", 0, least=0),
        provider=provider.text("kind"),
        ray_address=provider.section("ray").text("address"),
    )


def chosen_provider(asked: str | None, facts: PolicyFacts) -> str:
    """Return where attention nodes run: as asked for, else as the policy says.

    Raises:
        ConfigurationError: the two differ, or a stack cannot start with the policy's.
    """
    given = facts.provider
    if given is None:
        return asked or PROVIDERS[0]
    if given not in PROVIDERS:
        raise ConfigurationError(
            f"{POLICY_FLAG}: {facts.path}: provider.kind: a stack starts with {' or '.join(PROVIDERS)}, not "
            f"{given}; run the services one by one"
        )
    if asked not in (None, given):
        raise ConfigurationError(f"--provider: {asked} is not the provider.kind {given} of {facts.path}")
    return given


@dataclass(frozen=True, slots=True)
class _Section:
    """A mapping of a policy file, whose settings are named in full where one is no good."""

    path: Path
    prefix: str
    fields: Any

    def __post_init__(self) -> None:
        if not isinstance(self.fields, dict):
            where = f"{self.prefix.removesuffix('.')}: " if self.prefix else ""
            raise ConfigurationError(f"{POLICY_FLAG}: {self.path}: {where}not a mapping of settings")

    def section(self, name: str) -> _Section:
        fields = self.fields.get(name)
        return _Section(self.path, f"{self.prefix}{name}.", {} if fields is None else fields)

    def number(self, name: str, default: int, *, least: int) -> int:
        value = self.fields.get(name)
        if value is None and (self.prefix or name not in self.fields):
            return default
        if not is_whole(value) or value < least:
            raise self._fault(name, f"must be a number from {least}, not {value!r}")
        return value

    def price(self, name: str) -> float:
        value = self.fields.get(name, 0.0)
        if not is_number(value) or not 0 <= value < math.inf:
            raise self._fault(name, f"must be a number from 0, not {value!r}")
        return float(value)

    def size(self, name: str) -> int | None:
        value = self.fields.get(name)
        if value is None:
            return None
        try:
            return parse_size(value)
        except ValueError as error:
            raise self._fault(name, str(error)) from error

    def text(self, name: str) -> str | None:
        value = self.fields.get(name)
        return None if value is None else str(value)

    def _fault(self, name: str, fault: str) -> ConfigurationError:
        return ConfigurationError(f"{POLICY_FLAG}: {self.path}: {self.prefix}{name}: {fault}")
