"""The files that `kernelflume serve` hands to its scaler: the scaling policy and the performance profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelflume.core.errors import ConfigurationError
from kernelflume.runtime.smallfile import read_small_file
from kernelflume.runtime.yamltext import parse_mapping

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_ATTENTION_NODES = 2
"""How many a stack without a policy begins with."""
DEFAULT_MINIMUM_NODES = 1
"""What a policy that does not name its minimum has."""
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


def first_number(attention_nodes: int | None, policy_file: Path | None) -> int:
    """Return how many attention nodes a stack begins with: as asked for, else the policy's minimum.

    Only ``minimum_nodes`` is read here; the scaler checks the rest when it starts.

    Raises:
        ConfigurationError: the policy file is no YAML mapping, or its minimum is no number of nodes.
    """
    if attention_nodes is not None:
        return attention_nodes
    if policy_file is None:
        return DEFAULT_ATTENTION_NODES
    try:
        fields = parse_mapping(read_small_file(policy_file))
    except ConfigurationError as error:
        raise ConfigurationError(f"{POLICY_FLAG}: {policy_file}: {error}") from error
    minimum = fields.get("minimum_nodes", DEFAULT_MINIMUM_NODES)
    if not isinstance(minimum, int) or isinstance(minimum, bool) or minimum < 1:
        raise ConfigurationError(
            f"{POLICY_FLAG}: {policy_file}: minimum_nodes: must be a number from 1, not {minimum!r}"
        )
    return minimum
