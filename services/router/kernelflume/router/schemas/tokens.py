"""Bodies of POST /tokenize and /detokenize, in vLLM's words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from kernelflume.router.schemas.base import RequestBody, refusal
from kernelflume.router.schemas.generation import MAX_TOKEN_IDS, TokenIds
from kernelflume.router.schemas.messages import MAX_MESSAGES, ChatMessage, TemplateVariables
from kernelflume.router.schemas.tools import MAX_TOOLS, ToolDefinition

if TYPE_CHECKING:
    from collections.abc import Mapping

_OF_CHAT = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools")


class TokenizeRequest(RequestBody):
    """Body of POST /tokenize: a text, or a conversation."""

    not_served: ClassVar[Mapping[str, tuple[Any, ...]]] = {"chat_template": (), "mm_processor_kwargs": ()}

    prompt: str | None = None
    """The text."""
    messages: (
        Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)] | None
    ) = None
    """The conversation, instead of a text."""
    add_special_tokens: bool | None = None
    """Add what the model wants around a text, such as bos. Default: for a text, not for a conversation."""
    return_token_strs: bool = False
    """Give each token as the vocabulary writes it as well."""
    add_generation_prompt: bool | None = None
    """Let the model begin a new message. Default: unless the final message is continued."""
    continue_final_message: bool = False
    """Let the model go on with the final message instead."""
    chat_template_kwargs: TemplateVariables = Field(default_factory=dict)
    """Further variables for the chat template."""
    tools: Annotated[list[ToolDefinition], Field(fail_fast=True, max_length=MAX_TOOLS)] = Field(
        default_factory=list
    )
    """Functions that the model may call."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise refusal("either prompt or messages must be given, and not both", param="prompt")
        if self.messages is None:
            for name in _OF_CHAT:
                if name in self.model_fields_set:
                    raise refusal(f"{name} is only allowed with messages", param=name)
        if self.continue_final_message and self.add_generation_prompt:
            raise refusal(
                "continue_final_message and add_generation_prompt cannot both be true",
                param="continue_final_message",
            )
        return self


class DetokenizeRequest(RequestBody):
    """Body of POST /detokenize."""

    tokens: Annotated[TokenIds, Field(strict=False, fail_fast=True, max_length=MAX_TOKEN_IDS)]
    """Token ids."""
