"""Request bodies of the OpenAI API, as far as they are served here, with vLLM's extensions.

``null`` means unset everywhere. A field that is not known, or known and not served, is refused by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from kernelflume.core.errors import InvalidRequestError
from kernelflume.core.sampling import MAX_LOGPROBS
from kernelflume.router import unsupported
from kernelflume.router.stopping import MAX_STOP_STRING_CHARS, MAX_STOP_STRINGS
from kernelflume.router.structured import ResponseFormat, StructuredOutputs  # noqa: TC001 - pydantic reads them

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import ErrorDetails

MAX_CHOICES_PER_PROMPT = 128
"""OpenAI's own limit for `n`."""
MAX_STOP_TOKEN_IDS = 128

_MESSAGE_FIELDS_NOT_SERVED = frozenset(
    {"tool_calls", "tool_call_id", "function_call", "refusal", "audio", "annotations", "reasoning_content"}
)


class _Strict(BaseModel):
    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, frozen=True, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None}


class StreamOptions(_Strict):
    """What a stream carries besides the text."""

    include_usage: bool = False
    """End with a chunk that has the usage and no choice."""


class ChatMessage(_Strict):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    """Who speaks; `developer` is OpenAI's newer word for `system` and is given to the model as that."""
    content: str
    """The text, or a list of parts of type `text`, which are joined by line ends."""
    name: str | None = None
    """Name of the speaker, for chat templates that show it."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_tools(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        # A tuple: the role may be of any type here, also one that has no hash.
        if data.get("role") in ("tool", "function"):
            raise _refusal(f"messages of role {data['role']!r} are not supported by this server")
        for name in _MESSAGE_FIELDS_NOT_SERVED & data.keys():
            if data[name]:
                raise _refusal(f"{name} in a message is not supported by this server")
        return {name: value for name, value in data.items() if name not in _MESSAGE_FIELDS_NOT_SERVED}

    @field_validator("content", mode="before")
    @classmethod
    def _join_parts(cls, value: Any) -> Any:
        return "\n".join(map(_text_of_part, value)) if isinstance(value, list) else value

    def for_template(self) -> dict[str, Any]:
        """Return the message as chat templates read it."""
        role = "system" if self.role == "developer" else self.role
        name = {} if self.name is None else {"name": self.name}
        return {"role": role, "content": self.content, **name}


class GenerationBody(_Strict):
    """What both kinds of request share."""

    not_served: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    model: str | None = None
    """Name of the model; default: the first one served."""
    max_tokens: int | None = None
    """Most tokens a choice may have."""
    min_tokens: int = 0
    """Fewest tokens a choice has: before, no eos, stop token or stop string ends it."""
    temperature: float | None = None
    """0 takes the most likely token. Default: the model's generation_config, else 1."""
    top_p: float | None = None
    top_k: int | None = None
    """Keep the k most likely tokens; 0 or -1 keeps all."""
    min_p: float | None = None
    seed: int | None = None
    """With n choices, choice i uses seed + i."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    n: int = Field(default=1, ge=1, le=MAX_CHOICES_PER_PROMPT)
    stop: tuple[str, ...] = ()
    """Strings that end a choice: at most 16, of at most 1,024 characters each."""
    stop_token_ids: tuple[int, ...] = Field(default=(), strict=False)
    """Token ids that end a choice: at most 128."""
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Token id -> what is added to its logit, -100 to 100."""
    allowed_token_ids: tuple[int, ...] = ()
    """Only these tokens may be chosen; empty allows all."""
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | bool | None = None
    """Older name of structured_outputs.json, as the next three of its other fields."""
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    skip_special_tokens: bool = True
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    """Give the prompt's and the choices' token ids as well."""
    user: str | None = None
    """A label of the caller's own; not used."""
    metadata: dict[str, str] | None = None
    """Labels of the caller's own; not used."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_not_served(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name in cls.not_served.keys() & data.keys():
            if not unsupported.asks_for_nothing(data[name], cls.not_served[name]):
                raise _refusal(f"{name} is not supported by this server", param=name)
        return {name: value for name, value in data.items() if name not in cls.not_served}

    @field_validator("stop", mode="before")
    @classmethod
    def _read_stop(cls, value: Any) -> Any:
        stops = [value] if isinstance(value, str) else value
        if not isinstance(stops, list) or not all(isinstance(item, str) for item in stops):
            raise _refusal("stop must be a string or a list of strings")
        if len(stops) > MAX_STOP_STRINGS:
            raise _refusal(f"stop may have at most {MAX_STOP_STRINGS} strings, not {len(stops)}")
        if not all(0 < len(item) <= MAX_STOP_STRING_CHARS for item in stops):
            raise _refusal(f"each stop string must have 1 to {MAX_STOP_STRING_CHARS} characters")
        return tuple(stops)

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _read_logit_bias(cls, value: Any) -> Any:
        if not isinstance(value, dict) or not all(_is_number(bias) for bias in value.values()):
            raise _refusal("logit_bias must be an object of numbers by token id")
        # As the id is written, so that no two keys name one token.
        if not all(key.isascii() and key.isdigit() and str(int(key[:10])) == key for key in value):
            raise _refusal("the keys of logit_bias must be token ids")
        return tuple((int(key), float(bias)) for key, bias in value.items())

    @field_validator("allowed_token_ids", mode="before")
    @classmethod
    def _read_allowed_token_ids(cls, value: Any) -> Any:
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise _refusal("allowed_token_ids must be a list of integers")
        return tuple(value)

    @field_validator("stop_token_ids", mode="before")
    @classmethod
    def _read_stop_token_ids(cls, value: Any) -> Any:
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise _refusal("stop_token_ids must be a list of integers")
        if len(value) > MAX_STOP_TOKEN_IDS:
            raise _refusal(f"stop_token_ids may have at most {MAX_STOP_TOKEN_IDS} ids, not {len(value)}")
        return tuple(value)

    @model_validator(mode="after")
    def _check_stream_options(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise _refusal("stream_options is only allowed when stream is true", param="stream_options")
        return self

    @property
    def wanted_tokens(self) -> int | None:
        """Most tokens a choice may have, if the request says so."""
        return self.max_tokens

    @property
    def prompt_only(self) -> bool:
        """True when nothing is to be generated: the prompt comes back, mostly for its log probabilities."""
        return False

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives to tell the likelihood of beside each token's own; None: tell nothing."""
        return None

    @property
    def num_prompt_logprobs(self) -> int | None:
        """The same for the prompt's tokens."""
        return None

    @property
    def include_usage(self) -> bool:
        """True when a stream ends with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class ChatCompletionRequest(GenerationBody):
    """Body of POST /v1/chat/completions."""

    not_served: ClassVar[Mapping[str, tuple[Any, ...]]] = unsupported.CHAT_FIELDS

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = None
    """Newer name of max_tokens; it wins if both are given."""
    add_generation_prompt: bool | None = None
    """Let the model begin a new message. Default: unless the final message is continued."""
    continue_final_message: bool = False
    """Let the model go on with the final message instead."""
    add_special_tokens: bool = False
    """Add bos and the like around the rendered conversation; templates mostly have them."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further variables for the chat template."""
    logprobs: bool = False
    """Tell the log probability of each token of the text, by the model alone: without temperature, bias and
    the like."""
    top_logprobs: int = Field(default=0, ge=0, le=MAX_LOGPROBS)
    """Tell that of so many of the likeliest tokens as well; needs logprobs."""
    safety_identifier: str | None = None
    """A label of the caller's own; not used."""
    prompt_cache_key: str | None = None
    """A label of the caller's own; not used."""

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives to tell the likelihood of beside each token's own; None: tell nothing."""
        return self.top_logprobs if self.logprobs else None

    @model_validator(mode="after")
    def _check_top_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise _refusal("top_logprobs needs logprobs to be true", param="top_logprobs")
        return self

    @model_validator(mode="after")
    def _check_continuation(self) -> Self:
        if self.continue_final_message and self.add_generation_prompt:
            raise _refusal(
                "continue_final_message and add_generation_prompt cannot both be true",
                param="continue_final_message",
            )
        return self

    @property
    def wanted_tokens(self) -> int | None:
        """Most tokens a choice may have, if the request says so."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


Prompt = str | tuple[int, ...]
"""A prompt as text or as token ids."""


class CompletionRequest(GenerationBody):
    """Body of POST /v1/completions."""

    not_served: ClassVar[Mapping[str, tuple[Any, ...]]] = unsupported.COMPLETION_FIELDS

    prompt: tuple[Prompt, ...]
    """Text, token ids, or a list of either; choice i of prompt p has index p * n + i."""
    echo: bool = False
    """Begin each choice's text with its prompt's. With logprobs, those of the prompt come too."""
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    """Tell the log probability of each token, and of so many of the likeliest, by the model alone: without
    temperature, bias and the like."""
    add_special_tokens: bool = True
    """Add what the model wants around a text, such as bos."""

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives to tell the likelihood of beside each token's own; None: tell nothing."""
        return self.logprobs

    @property
    def num_prompt_logprobs(self) -> int | None:
        """The same for the prompt's tokens."""
        return self.logprobs if self.echo else None

    @property
    def prompt_only(self) -> bool:
        """True when nothing is to be generated: the prompt comes back, mostly for its log probabilities."""
        return self.echo and self.max_tokens == 0

    @field_validator("prompt", mode="before")
    @classmethod
    def _read_prompt(cls, value: Any) -> Any:
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, list) or not value:
            raise _refusal("prompt must be a string, a list of token ids, or a list of those, not empty")
        if all(type(item) is int for item in value):
            return (tuple(value),)
        if all(isinstance(item, str) for item in value):
            return tuple(value)
        prompts = tuple(item if isinstance(item, str) else _read_token_ids(item) for item in value)
        if not all(prompt is not None for prompt in prompts):
            raise _refusal("prompt must be a string, a list of token ids, or a list of those")
        return prompts


B = TypeVar("B", bound=GenerationBody)


def parse(kind: type[B], body: bytes) -> B:
    """Read a request body.

    Raises:
        InvalidRequestError: it is no JSON, or a field is bad; the first such field is named.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _explain(error.errors(include_url=False, include_input=False)[0]) from None


def _read_token_ids(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        return tuple(value)
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text_of_part(part: Any) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise _refusal("each part of a message's content must be an object with a type")
    if part["type"] != "text":
        raise _refusal(f"content of type {part['type']!r} is not supported by this server, only text")
    if not isinstance(part.get("text"), str) or len(part) > 2:
        raise _refusal("a part of type 'text' must have a text and nothing else")
    return str(part["text"])


def _refusal(message: str, *, param: str | None = None) -> PydanticCustomError:
    # The text goes through a template, in which braces of the caller's would be read as names.
    return PydanticCustomError("refused", "{reason}", {"reason": message, "param": param or ""})


def _explain(fault: ErrorDetails) -> InvalidRequestError:
    place = _name_place(fault["loc"])
    match fault["type"]:
        case "json_invalid":
            return InvalidRequestError(f"The body cannot be read: {fault['msg']}")
        case "extra_forbidden":
            return InvalidRequestError(f"Unrecognized request argument supplied: {place}", parameter=place)
        case "missing":
            return InvalidRequestError(f"Missing required parameter: {place}", parameter=place)
        case "refused":
            return InvalidRequestError(fault["msg"], parameter=fault["ctx"]["param"] or place)
    return InvalidRequestError(f"{place}: {fault['msg']}" if place else fault["msg"], parameter=place)


def _name_place(location: tuple[int | str, ...]) -> str | None:
    """Return a place as OpenAI writes it (messages[0].content), without the names of union branches."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.isidentifier() and part not in {"str", "int"}:
            text += f".{part}" if text else part
    return text or None
