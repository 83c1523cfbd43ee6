"""Checks of JSON schemas that clients send, before anything is made of them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernelflume.core.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_DEPTH = 64
"""Levels of nesting; each `properties` and the schema within count as two."""
MAX_NODES = 20_000

_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_SCHEMAS = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAPS = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
_IN_PLACE = ("allOf", "anyOf", "oneOf")


class SchemaError(InvalidRequestError):
    """A JSON schema is none, or cannot be followed."""


def check_schema(schema: Any) -> None:
    """Refuse what is no JSON schema, or one that nothing can be written by.

    Raises:
        SchemaError: it nests too deep or is too large, names a type that does not exist, refers to nothing,
            or only to itself.
    """
    _check_size(schema)
    _Checker(schema).check(schema)


def _check_size(schema: Any) -> None:
    num_nodes = 0
    level = [schema]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise SchemaError(f"the JSON schema nests deeper than {MAX_DEPTH} levels")
        num_nodes += len(level)
        if num_nodes > MAX_NODES:
            raise SchemaError(f"the JSON schema has more than {MAX_NODES} values")
        below: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                below += node.values()
            elif isinstance(node, list):
                below += node
        level = below


def _within(node: dict[str, Any]) -> Iterator[Any]:
    """Yield the schemas that a schema holds."""
    for key in _SCHEMAS:
        if key in node:
            yield from node[key] if key == "items" and isinstance(node[key], list) else [node[key]]
    for key in _LISTS:
        if key in node:
            if not isinstance(node[key], list) or not node[key]:
                raise SchemaError(f"{key} in a JSON schema must be a list of schemas, not empty")
            yield from node[key]
    for key in _MAPS:
        if key in node:
            if not isinstance(node[key], dict):
                raise SchemaError(f"{key} in a JSON schema must be an object")
            yield from node[key].values()


class _Checker:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._sound: set[str] = set()  # references that were followed to their end

    def check(self, node: Any) -> None:
        """Check a schema and all within; the depth is bounded."""
        if isinstance(node, bool):
            return
        if not isinstance(node, dict):
            raise SchemaError(f"a JSON schema is an object, not {_name(node)}")
        self._check_type(node.get("type"))
        self._follow(node, path=())
        for below in _within(node):
            self.check(below)
        if "enum" in node and (not isinstance(node["enum"], list) or not node["enum"]):
            raise SchemaError("enum in a JSON schema must be a list, not empty")
        required = node.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise SchemaError("required in a JSON schema must be a list of names")

    def _check_type(self, value: Any) -> None:
        if value is None:
            return
        names = value if isinstance(value, list) else [value]
        if not names:
            raise SchemaError("type in a JSON schema must name a type")
        for name in names:
            if not isinstance(name, str) or name not in _TYPES:
                raise SchemaError(f"the JSON schema has the type {name!r:.80}, which does not exist")

    def _follow(self, node: Any, *, path: tuple[str, ...]) -> None:
        """Follow references that are met without reading anything: a circle of those never ends."""
        if not isinstance(node, dict):
            return
        reference = node.get("$ref")
        if reference is not None:
            self._follow_reference(reference, path)
        for key in _IN_PLACE:
            branches = node.get(key)
            for branch in branches if isinstance(branches, list) else ():
                self._follow(branch, path=path)

    def _follow_reference(self, reference: Any, path: tuple[str, ...]) -> None:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise SchemaError(f"$ref must refer to a place in the same JSON schema, not {reference!r:.80}")
        if reference in path:
            raise SchemaError(f"the JSON schema refers to itself without end: {reference:.80}")
        if len(path) >= MAX_DEPTH:
            raise SchemaError(f"the JSON schema has a chain of more than {MAX_DEPTH} references")
        if reference not in self._sound:
            self._follow(self._resolve(reference), path=(*path, reference))
            self._sound.add(reference)

    def _resolve(self, reference: str) -> Any:
        node = self._root
        for part in reference.removeprefix("#").split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and name in node:
                node = node[name]
            elif isinstance(node, list) and name in map(str, range(len(node))):
                node = node[int(name)]
            else:
                raise SchemaError(f"$ref {reference!r:.80} refers to nothing in the JSON schema")
        return node


def _name(value: Any) -> str:
    return "null" if value is None else type(value).__name__
