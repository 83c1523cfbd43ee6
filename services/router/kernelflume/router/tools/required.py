"""Calls that a request demands: a JSON schema guides the model, so that its text is the calls alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernelflume.router.tools.calls import CallDelta, Parsed, new_call_id
from kernelflume.router.tools.sequence import CallSequence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.router.tools.calls import Tool


def calls_schema(tools: Sequence[Tool], *, max_calls: int | None) -> dict[str, Any]:
    """Return the schema of a list of calls, one of them at least."""
    definitions: dict[str, Any] = {}
    calls = []
    for number, tool in enumerate(tools):
        parameters = arguments_schema(tool)
        if _has_reference(parameters):
            # References are read from the top of a schema, so one that has some moves to a place of its own.
            name = f"tool{number}"
            definitions[name] = _move(parameters, f"#/$defs/{name}")
            parameters = {"$ref": f"#/$defs/{name}"}
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": tool.name}, "arguments": parameters},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    items = calls[0] if len(calls) == 1 else {"anyOf": calls}
    limit = {} if max_calls is None else {"maxItems": max_calls}
    return {"type": "array", "minItems": 1, **limit, "items": items, **_definitions(definitions)}


def calls_or_schema(tools: Sequence[Tool], schema: Any, *, max_calls: int | None) -> dict[str, Any]:
    """Return the schema of a list of calls, or else of what fits ``schema``."""
    calls = calls_schema(tools, max_calls=max_calls)
    definitions = calls.pop("$defs", {})
    if _has_reference(schema):
        definitions["answer"] = _move(schema, "#/$defs/answer")
        schema = {"$ref": "#/$defs/answer"}
    return {"anyOf": [calls, schema], **_definitions(definitions)}


def _definitions(definitions: dict[str, Any]) -> dict[str, Any]:
    return {"$defs": definitions} if definitions else {}


def arguments_schema(tool: Tool) -> dict[str, Any]:
    """Return the schema of a tool's arguments: an object, whatever else it says."""
    return {"type": "object", **tool.parameters}


def _has_reference(node: Any) -> bool:
    if isinstance(node, list):
        return any(map(_has_reference, node))
    if not isinstance(node, dict):
        return False
    return isinstance(node.get("$ref"), str) or any(map(_has_reference, node.values()))


def _move(node: Any, place: str) -> Any:
    """Return a schema whose references to itself fit when it stands at ``place``."""
    if isinstance(node, list):
        return [_move(item, place) for item in node]
    if not isinstance(node, dict):
        return node
    moved = {key: _move(value, place) for key, value in node.items()}
    reference = node.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = place + reference.removeprefix("#")
    return moved


class ListedCallsParser:
    """Reads a text that is a list of calls. Used by one choice only."""

    def __init__(self, names: frozenset[str], *, max_calls: int | None) -> None:
        """Begin a choice; see ``ToolFormat.new_parser``."""
        self._sequence = CallSequence(names, max_calls=max_calls)
        self._stopped = False

    @property
    def num_calls(self) -> int:
        """Calls that have begun."""
        return self._sequence.num_calls

    @property
    def complete(self) -> bool:
        """True when as many calls as are wanted have ended."""
        return self._sequence.complete

    def feed(self, text: str) -> Parsed:
        """Take the next piece."""
        if self._stopped or self.complete:
            return Parsed()
        at, calls = self._sequence.feed(text)
        self._stopped = at < len(text) or self._sequence.failed
        return Parsed(calls=calls)

    def flush(self) -> Parsed:
        """Return what was held back: a call that was cut off before its name gives nothing."""
        return Parsed()


class NamedCallParser:
    """Reads a text that is the arguments of one function. Used by one choice only."""

    complete = False

    def __init__(self, name: str) -> None:
        """Begin a choice."""
        self._name = name
        self.num_calls = 0
        """Calls that have begun."""

    def feed(self, text: str) -> Parsed:
        """Take the next piece."""
        if not text:
            return Parsed()
        if self.num_calls:
            return Parsed(calls=[CallDelta(0, text)])
        self.num_calls = 1
        return Parsed(calls=[CallDelta(0, text, new_call_id(), self._name)])

    def flush(self) -> Parsed:
        """Return nothing: no text is held back."""
        return Parsed()
