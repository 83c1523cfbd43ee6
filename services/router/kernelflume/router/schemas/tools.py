"""Tools and calls in request bodies."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from kernelflume.core.grammar import nesting
from kernelflume.router.json_schema import MAX_DEPTH, SchemaError, check_schema
from kernelflume.router.schemas.base import Strict, refusal
from kernelflume.router.tools.calls import Tool
from kernelflume.router.tools.use import NO_TOOLS, ToolMode, ToolUse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_TOOLS = 128
"""OpenAI's own limit."""

_NAME_PATTERN = r"^[a-zA-Z0-9_.-]{1,128}$"
FunctionName = Annotated[str, Field(pattern=_NAME_PATTERN)]


def _check_parameters(value: Any) -> Any:
    if isinstance(value, dict):
        if value.get("type", "object") != "object":
            raise refusal("the schema of a function's parameters must be of type 'object'")
        try:
            check_schema(value)
        except SchemaError as error:
            raise refusal(str(error)) from None
    return value


JsonSchema = Annotated[dict[str, Any], BeforeValidator(_check_parameters)]


class FunctionDefinition(Strict):
    """A function that the model may call."""

    name: FunctionName
    description: str = ""
    parameters: JsonSchema = Field(default_factory=dict)
    """JSON schema of the arguments, an object; default: none."""
    strict: bool = False
    """Arguments follow the schema wherever a call is required; else the model is free."""

    def to_tool(self) -> Tool:
        """Return it as the tools package knows it."""
        return Tool(self.name, self.description, self.parameters)


class ToolDefinition(Strict):
    """A tool; functions are the only kind served."""

    type: Literal["function"]
    function: FunctionDefinition


class CalledFunction(Strict):
    """What an earlier call called."""

    name: FunctionName
    arguments: str = ""
    """JSON."""


class MessageToolCall(Strict):
    """A call that the model made earlier."""

    not_served: ClassVar[Mapping[str, tuple[Any, ...]]] = {"index": tuple(range(MAX_TOOLS))}

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self, *, as_objects: bool) -> dict[str, Any]:
        """Return the call as chat templates read it.

        Args:
            as_objects: arguments as an object, where they are one, which is what templates expect.
        """
        arguments: Any = self.function.arguments
        if as_objects:
            arguments = _object_of(arguments)
        function = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id, "type": self.type, "function": function}


def _object_of(arguments: str) -> Any:
    if nesting(arguments, with_strings=True) > MAX_DEPTH:
        # A template could not walk through it.
        return arguments
    try:
        value = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


class ToolChoiceFunction(Strict):
    """Which function."""

    name: FunctionName


_MODES = (ToolMode.NONE, ToolMode.AUTO, ToolMode.REQUIRED)


class ToolChoice(Strict):
    """Whether and what the model calls."""

    type: Literal["none", "auto", "required", "function"]
    function: ToolChoiceFunction | None = None
    """The one that must be called, with type `function`."""

    @model_validator(mode="after")
    def _check_function(self) -> Self:
        if (self.type == "function") != (self.function is not None):
            raise refusal("tool_choice must name a function in `function` if its type is that")
        return self


def read_tool_choice(value: Any) -> Any:
    """Read a mode as a choice of that type.

    Raises:
        PydanticCustomError: it is neither a mode nor an object that names a function.
    """
    if isinstance(value, str) and value in _MODES:
        return {"type": value}
    if not isinstance(value, dict):
        raise refusal(f"tool_choice must be one of {', '.join(_MODES)}, or name a function")
    if value.get("type") != "function":
        raise refusal(f"tool_choice of type {value.get('type')!r:.40} is not supported by this server")
    return value


_TOOL_CHOICE_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "enum": [mode.value for mode in _MODES]},
        {
            "type": "object",
            "properties": {
                "type": {"const": "function"},
                "function": {
                    "type": "object",
                    "properties": {"name": {"type": "string", "pattern": _NAME_PATTERN}},
                    "required": ["name"],
                    "additionalProperties": False,
                },
            },
            "required": ["type", "function"],
            "additionalProperties": False,
        },
    ]
}


class WithTools(Strict):
    """Fields of tools in a chat completion."""

    tools: Annotated[list[ToolDefinition], Field(fail_fast=True, max_length=MAX_TOOLS)] = Field(
        default_factory=list
    )
    """Functions that the model may call."""
    tool_choice: Annotated[
        ToolChoice, BeforeValidator(read_tool_choice), WithJsonSchema(_TOOL_CHOICE_SCHEMA)
    ] = ToolChoice(type="auto")
    """`auto` with tools lets the model decide; `required` and a named function guide it to valid calls."""
    parallel_tool_calls: bool = True
    """False ends an answer after its first call."""

    @model_validator(mode="after")
    def _check_tools(self) -> Self:
        check_tool_names([tool.function.name for tool in self.tools])
        if not self.tools and self.tool_choice.type in {"required", "function"}:
            raise refusal("tool_choice is only allowed when tools are specified", param="tool_choice")
        return self

    def tool_use(self) -> ToolUse:
        """Return what the request wants of tools."""
        if not self.tools:
            return NO_TOOLS
        forced = self.tool_choice.function
        return ToolUse(
            [tool.function.to_tool() for tool in self.tools],
            ToolMode(self.tool_choice.type) if forced is None else ToolMode.NAMED,
            None if forced is None else forced.name,
            parallel=self.parallel_tool_calls,
        )


def check_tool_names(names: Sequence[str]) -> None:
    """Refuse two tools of one name.

    Raises:
        PydanticCustomError: there are two.
    """
    if len(set(names)) < len(names):
        raise refusal("tools must have different names", param="tools")
