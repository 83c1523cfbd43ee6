"""The files that `kernelflume serve` hands to its scaler: the scaling policy and the performance profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from kernelflume.core.errors import ConfigurationError

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
        fields = yaml.safe_load(policy_file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{POLICY_FLAG}: {policy_file}: {' '.join(str(error).split())}") from error
    if fields is None:
        return DEFAULT_MINIMUM_NODES
    if not isinstance(fields, dict):
        raise ConfigurationError(f"{POLICY_FLAG}: {policy_file}: not a mapping of settings")
    minimum = fields.get("minimum_nodes", DEFAULT_MINIMUM_NODES)
    if not isinstance(minimum, int) or isinstance(minimum, bool) or minimum < 1:
        raise ConfigurationError(
            f"{POLICY_FLAG}: {policy_file}: minimum_nodes: must be a number from 1, not {minimum!r}"
        )
    return minimum
