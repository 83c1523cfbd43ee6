"""YAML that people write, read so that no content can do harm: it is a mapping, or an error says why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from kernelflume.core.errors import ConfigurationError
from kernelflume.runtime.smallfile import MAX_BYTES

if TYPE_CHECKING:
    from collections.abc import Hashable

_MAX_DEPTH = 16


def parse_mapping(text: str) -> dict[str, Any]:
    """Return the mapping that a YAML text is; an empty text is an empty one.

    Raises:
        ConfigurationError: it is too long, no YAML, or no mapping with text as keys; a key is there twice;
            it nests too deeply, or an alias stands for more than a scalar.
    """
    if len(text) > MAX_BYTES:
        raise ConfigurationError(f"it is longer than {MAX_BYTES // 1024} KiB")
    try:
        # The loader is a SafeLoader.
        values = yaml.load(text, _Loader)  # noqa: S506
    except yaml.YAMLError as error:
        raise ConfigurationError(f"no YAML: {_one_line(error)}") from error
    except Exception as error:
        # What a scalar's tag promises is converted by Python's own functions, which raise what they like:
        # `!!bool x` a KeyError, the date 2024-99-99 a ValueError.
        raise ConfigurationError(f"no YAML: a value cannot be read: {_one_line(error)}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigurationError("not a mapping of settings, `name: value` lines")
    for name in values:
        if not isinstance(name, str):
            raise ConfigurationError(f"{name!r} is no name of a setting")
    return values


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class _Loader(yaml.SafeLoader):
    """A SafeLoader that takes neither bombs nor a second value for the same key."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose one node, not too deep; an alias only of a scalar, as others multiply what they are."""
        is_alias = self.check_event(yaml.AliasEvent)
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self._depth >= _MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, "it nests too deeply", mark)
        self._depth += 1
        try:
            node: yaml.Node | None = super().compose_node(parent, index)
        finally:
            self._depth -= 1
        if is_alias and not isinstance(node, yaml.ScalarNode):
            raise yaml.composer.ComposerError(None, None, "an alias can only stand for a single value", mark)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Build a mapping whose keys differ."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{key.value} is there twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)
