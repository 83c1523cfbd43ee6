"""Items of the input of POST /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Tag, WithJsonSchema

from kernelflume.router.schemas.base import Strict, refusal
from kernelflume.router.schemas.messages import read_content
from kernelflume.router.schemas.tools import FunctionName  # noqa: TC001 - pydantic reads it

_PART_TYPES = ("input_text", "output_text")
_PARTS = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {"type": {"enum": list(_PART_TYPES)}, "text": {"type": "string"}},
        "required": ["type", "text"],
    },
}
_CONTENT_SCHEMA: dict[str, Any] = {"anyOf": [{"type": "string"}, _PARTS]}
_SAID_OF_TEXT = frozenset({"annotations", "logprobs"})


def _read_parts(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    parts = []
    for part in value:
        if isinstance(part, dict) and part.get("type") == "refusal":
            raise refusal("content of type 'refusal' is not supported by this server")
        # What an earlier answer said of its text is not shown to the model.
        kept = part
        if isinstance(part, dict):
            kept = {name: item for name, item in part.items() if name not in _SAID_OF_TEXT}
        parts.append(kept)
    return read_content(parts, types=_PART_TYPES)


class InputMessage(Strict):
    """A message; an earlier answer's can be sent as it came."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_read_parts), WithJsonSchema(_CONTENT_SCHEMA)]
    id: str | None = None
    """Of an earlier answer; not used."""
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    """Of an earlier answer; not used."""
    phase: str | None = None
    """Of an earlier answer; not used."""


class InputCall(Strict):
    """A call of an earlier answer."""

    type: Literal["function_call"]
    call_id: str
    name: FunctionName
    arguments: str
    id: str | None = None
    """Of an earlier answer; not used."""
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    """Of an earlier answer; not used."""


class InputResult(Strict):
    """What a called function returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: Annotated[str, BeforeValidator(_read_parts), WithJsonSchema(_CONTENT_SCHEMA)]
    id: str | None = None
    """Not used."""
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    """Not used."""


ITEMS = (InputMessage, InputCall, InputResult)
_ITEM_TYPES = ("message", "function_call", "function_call_output")


def read_input(value: Any) -> Any:
    """Read a text as a user's message, and refuse items of other types by name.

    Raises:
        PydanticCustomError: it is neither a text nor a list of items that are served.
    """
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise refusal("input must be a string or a list of items, not empty")
    for item in value:
        if not isinstance(item, dict):
            raise refusal("each item of input must be an object")
        if _type_of(item) not in _ITEM_TYPES:
            raise refusal(f"an item of type {item['type']!r:.40} in input is not supported by this server")
    return value


def _type_of(item: Any) -> Any:
    return item.get("type") or "message"


def _tag_of(item: Any) -> str:
    # With a space, so that no path to a field has it.
    return f"a {_type_of(item)}"


InputItem = Annotated[
    Annotated[InputMessage, Tag("a message")]
    | Annotated[InputCall, Tag("a function_call")]
    | Annotated[InputResult, Tag("a function_call_output")],
    Discriminator(_tag_of),
]
