"""Messages of a conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from kernelflume.router.schemas.base import Strict, at_most, refusal
from kernelflume.router.schemas.tools import MAX_TOOLS, MessageToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping

_TEXT_PART_FIELDS = 2

MAX_MESSAGES = 4096
"""Of a conversation: far more than fit a context, and few enough to be read at once."""
MAX_TEMPLATE_VARIABLES = 64

TemplateVariables = Annotated[dict[str, Any], at_most(MAX_TEMPLATE_VARIABLES)]


def read_content(value: Any, *, types: tuple[str, ...] = ("text",)) -> Any:
    """Join a list of parts to one text; leave everything else for the type check.

    Raises:
        PydanticCustomError: a part is no text.
    """
    if not isinstance(value, list):
        return value
    if not value:
        raise refusal("a message's content must have at least one part")
    return "\n".join(_text_of_part(part, types) for part in value)


def _text_of_part(part: Any, types: tuple[str, ...]) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise refusal("each part of a message's content must be an object with a type")
    if part["type"] not in types:
        raise refusal(f"content of type {part['type']!r} is not supported by this server, only text")
    if not isinstance(part.get("text"), str) or len(part) > _TEXT_PART_FIELDS:
        raise refusal(f"a part of type {part['type']!r} must have a text and nothing else")
    return str(part["text"])


Content = Annotated[
    str,
    BeforeValidator(read_content),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                        "required": ["type", "text"],
                        "additionalProperties": False,
                    },
                },
            ]
        }
    ),
]


class ChatMessage(Strict):
    """One message of a conversation."""

    not_served: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "annotations": ([],),
        "audio": ({},),
        "function_call": ({},),
        "reasoning": ("",),
        "reasoning_content": ("",),
        "refusal": ("",),
    }

    role: Literal["system", "developer", "user", "assistant", "tool"]
    """Who speaks; `developer` is OpenAI's newer word for `system` and is given to the model as that."""
    content: Content | None = None
    """The text, or a list of parts of type `text`, which are joined by line ends. Only an assistant's message
    with calls may do without."""
    name: str | None = None
    """Name of the speaker, for chat templates that show it."""
    tool_calls: Annotated[list[MessageToolCall], Field(fail_fast=True, max_length=MAX_TOOLS)] = Field(
        default_factory=list
    )
    """What an assistant called."""
    tool_call_id: str | None = None
    """Which call a tool's message answers."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_functions(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("role") == "function":
            raise refusal("messages of role 'function' are not supported by this server; use 'tool'")
        return data

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise refusal("tool_calls belong to messages of role 'assistant'", param="tool_calls")
        if self.tool_call_id is not None and self.role != "tool":
            raise refusal("tool_call_id belongs to messages of role 'tool'", param="tool_call_id")
        if self.tool_call_id is None and self.role == "tool":
            raise refusal("a message of role 'tool' must have a tool_call_id", param="tool_call_id")
        if self.content is None and not self.tool_calls:
            raise refusal("a message must have content", param="content")
        return self

    @property
    def about_tools(self) -> bool:
        """True for calls and results."""
        return bool(self.tool_calls) or self.role == "tool"

    def for_template(self, *, as_objects: bool) -> dict[str, Any]:
        """Return the message as chat templates read it.

        Args:
            as_objects: arguments of calls as objects.
        """
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self.content or "",
        }
        if self.name is not None:
            message["name"] = self.name
        if self.tool_calls:
            message["tool_calls"] = [call.for_template(as_objects=as_objects) for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message
