"""Body of POST /v1/completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field, WithJsonSchema, field_validator

from kernelflume.core.sampling import MAX_LOGPROBS
from kernelflume.router import unsupported
from kernelflume.router.schemas.base import refusal
from kernelflume.router.schemas.generation import GenerationBody

if TYPE_CHECKING:
    from collections.abc import Mapping

_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PROMPT = {
    "anyOf": [
        {"type": "string"},
        _IDS,
        {"type": "array", "items": {"anyOf": [{"type": "string"}, _IDS]}, "minItems": 1},
    ]
}

Prompt = str | tuple[int, ...]
"""A prompt as text or as token ids."""


class CompletionRequest(GenerationBody):
    """Body of POST /v1/completions."""

    not_served: ClassVar[Mapping[str, tuple[Any, ...]]] = unsupported.COMPLETION_FIELDS
    serves_best_of: ClassVar[bool] = True

    prompt: Annotated[tuple[Prompt, ...], WithJsonSchema(_PROMPT)]
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

    def without_prompt(self) -> Self:
        """Return the same without what only makes the prompt, which may be large."""
        return self.model_copy(update={"prompt": ()})

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
            raise refusal("prompt must be a string, a list of token ids, or a list of those, not empty")
        if all(type(item) is int for item in value):
            return (tuple(value),)
        if all(isinstance(item, str) for item in value):
            return tuple(value)
        prompts = tuple(item if isinstance(item, str) else _read_token_ids(item) for item in value)
        if not all(prompt is not None for prompt in prompts):
            raise refusal("prompt must be a string, a list of token ids, or a list of those")
        return prompts


def _read_token_ids(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, list) and value and all(type(item) is int for item in value):
        return tuple(value)
    return None
