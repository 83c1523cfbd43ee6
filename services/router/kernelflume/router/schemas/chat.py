"""Body of POST /v1/chat/completions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from kernelflume.core.errors import InvalidRequestError
from kernelflume.core.grammar import Grammar, GrammarKind
from kernelflume.core.sampling import MAX_LOGPROBS
from kernelflume.router import unsupported
from kernelflume.router.schemas.base import refusal
from kernelflume.router.schemas.generation import GenerationBody
from kernelflume.router.schemas.messages import MAX_MESSAGES, ChatMessage, TemplateVariables
from kernelflume.router.schemas.tools import WithTools
from kernelflume.router.tools.use import ToolMode

if TYPE_CHECKING:
    from collections.abc import Mapping


class ChatCompletionRequest(WithTools, GenerationBody):
    """Body of POST /v1/chat/completions."""

    not_served: ClassVar[Mapping[str, tuple[Any, ...]]] = unsupported.CHAT_FIELDS

    messages: Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: int | None = Field(default=None, json_schema_extra={"minimum": 1})
    """Newer name of max_tokens; it wins if both are given."""
    add_generation_prompt: bool | None = None
    """Let the model begin a new message. Default: unless the final message is continued."""
    continue_final_message: bool = False
    """Let the model go on with the final message instead."""
    add_special_tokens: bool = False
    """Add bos and the like around the rendered conversation; templates mostly have them."""
    chat_template_kwargs: TemplateVariables = Field(default_factory=dict)
    """Further variables for the chat template."""
    logprobs: bool = False
    """Tell the log probability of each token of the text, by the model alone: without temperature, bias and
    the like."""
    top_logprobs: int = Field(default=0, ge=0, le=MAX_LOGPROBS)
    """Tell that of so many of the likeliest tokens as well; needs logprobs."""
    safety_identifier: str | None = None
    """A label of the caller's own; not used."""

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives to tell the likelihood of beside each token's own; None: tell nothing."""
        return self.top_logprobs if self.logprobs else None

    @model_validator(mode="after")
    def _check_top_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise refusal("top_logprobs needs logprobs to be true", param="top_logprobs")
        return self

    @model_validator(mode="after")
    def _check_continuation(self) -> Self:
        if self.continue_final_message and self.add_generation_prompt:
            raise refusal(
                "continue_final_message and add_generation_prompt cannot both be true",
                param="continue_final_message",
            )
        return self

    @property
    def wanted_tokens(self) -> int | None:
        """Most tokens a choice may have, if the request says so."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def grammar(self) -> Grammar | None:
        """Return what the text must look like: calls where they are demanded, else what a field asks for.

        Raises:
            InvalidRequestError: fields contradict each other, or what one asks for is malformed.
        """
        asked = super().grammar()
        use = self.tool_use()
        if not use.active:
            return asked
        schema = use.schema(_schema_of(asked))
        if schema is None:
            return asked
        try:
            return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))
        except InvalidRequestError as error:
            raise InvalidRequestError(str(error), parameter="tools") from None

    def without_prompt(self) -> Self:
        """Return the same without what only makes the prompt, which may be large."""
        return self.model_copy(update={"messages": [], "chat_template_kwargs": {}})

    def own_name(self, parameter: str | None) -> str | None:
        """Return what the request calls a parameter that a weight node complains of."""
        forced = self.tool_use().mode in {ToolMode.REQUIRED, ToolMode.NAMED}
        if parameter in {"response_format", "structured_outputs"} and forced:
            return "tools"
        return super().own_name(parameter)


def _schema_of(grammar: Grammar | None) -> Any:
    """Return the JSON schema that a text must fit where no tool is called; None: it is free."""
    if grammar is None:
        return None
    match grammar.kind:
        case GrammarKind.JSON_OBJECT:
            return {"type": "object"}
        case GrammarKind.JSON_SCHEMA:
            return json.loads(grammar.text)
    raise InvalidRequestError(
        "tools can be combined with a guide to JSON only, not with an expression, a grammar or a choice",
        parameter="tools",
    )
