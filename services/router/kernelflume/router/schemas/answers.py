"""Answers, as the OpenAPI document describes them. They are written by ``formats``, not made from these."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    """An object of an answer; it has no field more than declared."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class ErrorDetail(Answer):
    """What was wrong."""

    message: str
    type: str
    param: str | None
    """The field at fault, where there is one."""
    code: str | None


class ErrorAnswer(Answer):
    """OpenAI's error object."""

    error: ErrorDetail


class ModelAnswer(Answer):
    """A name that the model is served under."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int | None
    """Longest context in tokens; null while no weight node can serve."""


class ModelListAnswer(Answer):
    """All names that the model is served under."""

    object: Literal["list"]
    data: list[ModelAnswer]


class CachedTokens(Answer):
    """Tokens that were not computed again."""

    cached_tokens: int


class UsageAnswer(Answer):
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class CalledFunctionAnswer(Answer):
    """What is called."""

    name: str
    arguments: str
    """JSON."""


class ToolCallAnswer(Answer):
    """A call of a function."""

    id: str
    type: Literal["function"]
    function: CalledFunctionAnswer


class MessageAnswer(Answer):
    """What the model says."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCallAnswer] = Field(default_factory=list)


class TokenLogprob(Answer):
    """How likely a token was."""

    token: str
    logprob: float
    bytes: list[int]


class ChosenTokenLogprob(TokenLogprob):
    """How likely the token was, and which were likeliest."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(Answer):
    """Of each token of a choice."""

    content: list[ChosenTokenLogprob]
    refusal: None


class ChatChoice(Answer):
    """One choice."""

    index: int
    message: MessageAnswer
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: str | int | None
    token_ids: list[int] = Field(default_factory=list)


class ChatAnswer(Answer):
    """A chat completion."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageAnswer
    prompt_token_ids: list[int] = Field(default_factory=list)


class CompletionLogprobs(Answer):
    """Of each token of a choice."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Answer):
    """One choice."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: str | int | None
    token_ids: list[int] = Field(default_factory=list)
    prompt_token_ids: list[int] = Field(default_factory=list)


class CompletionAnswer(Answer):
    """A completion."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageAnswer


class ResponseAnswer(BaseModel):
    """A response."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    model: str
    output: list[dict[str, Any]]
    """Items of type `message` and `function_call`."""
    usage: dict[str, Any]
    error: None
    incomplete_details: dict[str, Any] | None


class TokensAnswer(Answer):
    """The tokens of a text."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str | None] | None


class TextAnswer(Answer):
    """The text of tokens."""

    prompt: str


class StatusAnswer(Answer):
    """A state."""

    status: str


class VersionAnswer(Answer):
    """A release."""

    version: str
