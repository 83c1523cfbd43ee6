"""Body of POST /v1/responses: read as a chat completion, which it is in other words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from kernelflume.core.sampling import MAX_LOGPROBS
from kernelflume.router import unsupported
from kernelflume.router.schemas.base import RequestBody, Strict, parse, refusal
from kernelflume.router.schemas.chat import ChatCompletionRequest
from kernelflume.router.schemas.generation import MAX_CACHE_SALT_CHARS, CacheRetention, Labels
from kernelflume.router.schemas.messages import MAX_MESSAGES
from kernelflume.router.schemas.response_items import (
    ITEMS,
    InputCall,
    InputItem,
    InputMessage,
    InputResult,
    read_input,
)
from kernelflume.router.schemas.tools import MAX_TOOLS, FunctionName, JsonSchema

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOGPROBS = "message.output_text.logprobs"


class FunctionTool(Strict):
    """A function that the model may call."""

    not_served: ClassVar[Mapping[str, tuple[Any, ...]]] = {"defer_loading": (False,)}

    type: Literal["function"]
    name: FunctionName
    description: str = ""
    parameters: JsonSchema = Field(default_factory=dict)
    """JSON schema of the arguments, an object; default: none."""
    strict: bool = True
    """Arguments follow the schema wherever a call is required; else the model is free."""

    def for_chat(self) -> dict[str, Any]:
        """Return the tool as chat completions write it."""
        return {"type": "function", "function": self.model_dump(exclude={"type"})}


def _read_tools(value: Any) -> Any:
    for tool in value if isinstance(value, list) else ():
        if isinstance(tool, dict) and isinstance(tool.get("type"), str) and tool["type"] != "function":
            raise refusal(f"tools of type {tool['type']!r:.40} are not supported by this server")
    return value


class TextFormat(Strict):
    """What the text of the answer must look like."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    """Not shown to the model."""
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None
    """The schema is followed whatever this says."""

    def for_chat(self) -> dict[str, Any]:
        """Return the format as chat completions write it."""
        if self.type != "json_schema":
            return {"type": self.type}
        return {"type": self.type, "json_schema": {"name": self.name, "schema": self.schema_}}


class TextOptions(Strict):
    """What the text of the answer must look like."""

    not_served: ClassVar[Mapping[str, tuple[Any, ...]]] = {"verbosity": ("medium",)}

    format: TextFormat = TextFormat(type="text")


def _read_choice(value: Any) -> Any:
    if isinstance(value, dict) and value.get("type") != "function":
        raise refusal(f"tool_choice of type {value.get('type')!r:.40} is not supported by this server")
    if isinstance(value, dict) and (set(value) != {"type", "name"} or not isinstance(value["name"], str)):
        raise refusal("tool_choice of type 'function' must have a name and nothing else")
    if not isinstance(value, dict) and value not in ("none", "auto", "required"):
        raise refusal("tool_choice must be one of none, auto, required, or name a function")
    return value


_CHOICE_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "enum": ["none", "auto", "required"]},
        {
            "type": "object",
            "properties": {"type": {"const": "function"}, "name": {"type": "string"}},
            "required": ["type", "name"],
            "additionalProperties": False,
        },
    ]
}


class ResponseStreamOptions(Strict):
    """What a stream carries besides the answer."""

    include_obfuscation: bool = False
    """Accepted, for nothing is added to events whatever it says."""


_INPUT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "minItems": 1,
            "items": {"anyOf": [kind.model_json_schema() for kind in ITEMS]},
        },
    ]
}


class ResponsesRequest(RequestBody):
    """Body of POST /v1/responses. Nothing is stored: the conversation comes with each request."""

    not_served: ClassVar[Mapping[str, tuple[Any, ...]]] = unsupported.RESPONSES_FIELDS

    input: Annotated[
        list[InputItem],
        Field(fail_fast=True, max_length=MAX_MESSAGES),
        BeforeValidator(read_input),
        WithJsonSchema(_INPUT_SCHEMA),
    ]
    """A user's text, or the items of a conversation."""
    instructions: str | None = None
    """A system's message before the input."""
    max_output_tokens: int | None = Field(default=None, json_schema_extra={"minimum": 1})
    """Most tokens the answer may have."""
    temperature: float | None = Field(default=None, json_schema_extra={"minimum": 0, "maximum": 100})
    top_p: float | None = Field(default=None, json_schema_extra={"exclusiveMinimum": 0, "maximum": 1})
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    """Tell the log probabilities of so many of the likeliest tokens as well; needs `include`."""
    include: Annotated[list[Literal["message.output_text.logprobs"]], Field(fail_fast=True)] = Field(
        default_factory=list
    )
    """What the answer has besides: the log probability of each token."""
    tools: Annotated[
        list[FunctionTool], Field(fail_fast=True, max_length=MAX_TOOLS), BeforeValidator(_read_tools)
    ] = Field(default_factory=list)
    tool_choice: Annotated[Any, BeforeValidator(_read_choice), WithJsonSchema(_CHOICE_SCHEMA)] = "auto"
    parallel_tool_calls: bool = True
    """False ends an answer after its first call."""
    text: TextOptions = TextOptions()
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    cache_salt: str | None = Field(default=None, min_length=1, max_length=MAX_CACHE_SALT_CHARS)
    user: str | None = None
    """Names the session that the request belongs to, where the header x-session-id does not."""
    metadata: Labels = Field(default_factory=dict)
    """Labels of the caller's own; given back."""
    safety_identifier: str | None = None
    """A label of the caller's own; not used."""
    prompt_cache_key: str | None = None
    """Names the session where neither of them does."""
    prompt_cache_retention: CacheRetention | None = None
    """How long what is computed of the prompt stays, as in a chat."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.top_logprobs and not self.include:
            raise refusal(f"top_logprobs needs {_LOGPROBS} in include", param="top_logprobs")
        if self.stream_options is not None and not self.stream:
            raise refusal("stream_options is only allowed when stream is true", param="stream_options")
        return self

    def without_input(self) -> Self:
        """Return what an answer repeats of the request: all but its input, which may be large."""
        return self.model_copy(update={"input": ""})

    def to_chat(self) -> ChatCompletionRequest:
        """Return the chat completion that this asks for.

        Raises:
            InvalidRequestError: what it asks for is not possible; see ``own_name`` for the parameter.
        """
        choice = self.tool_choice
        if isinstance(choice, dict):
            choice = {"type": "function", "function": {"name": choice["name"]}}
        body = {
            "model": self.model,
            "messages": self._messages(),
            "max_completion_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "logprobs": bool(self.include),
            "top_logprobs": self.top_logprobs if self.include else None,
            "tools": [tool.for_chat() for tool in self.tools],
            "tool_choice": choice,
            "parallel_tool_calls": self.parallel_tool_calls,
            "response_format": self.text.format.for_chat(),
            "stream": self.stream,
            "cache_salt": self.cache_salt,
            "user": self.user,
            "prompt_cache_key": self.prompt_cache_key,
            "prompt_cache_retention": self.prompt_cache_retention,
        }
        return parse(ChatCompletionRequest, json.dumps(body).encode())

    def _messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        if self.instructions is not None:
            messages.append({"role": "system", "content": self.instructions})
        for item in self.input:
            match item:
                case InputMessage():
                    messages.append({"role": item.role, "content": item.content})
                case InputCall():
                    function = {"name": item.name, "arguments": item.arguments}
                    call = {"id": item.call_id, "type": "function", "function": function}
                    # Items of one answer follow each other: its text and its calls are one message.
                    if messages and messages[-1]["role"] == "assistant":
                        messages[-1].setdefault("tool_calls", []).append(call)
                    else:
                        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
                case InputResult():
                    messages.append({"role": "tool", "content": item.output, "tool_call_id": item.call_id})
        return messages


_OWN_NAMES = {
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "response_format": "text",
}


def own_name(parameter: str | None) -> str | None:
    """Return what a parameter of a chat completion is called here."""
    if parameter is None:
        return None
    first = parameter.partition(".")[0].partition("[")[0]
    return _OWN_NAMES.get(first, parameter)
