"""Fields of OpenAI's and vLLM's APIs that are not served here: refused by name, never ignored.

A field may be present with a value that asks for nothing, because clients send such values by habit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_COMMON: dict[str, tuple[Any, ...]] = {
    "bad_words": ([],),
    "beam_width": (),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "priority": (0,),
    "prompt_logprobs": (),
    "prompt_cache_options": (),
    "guided_decoding_backend": ("auto",),
    "guided_whitespace_pattern": (),
    "return_tokens_as_token_ids": (False,),
    "service_tier": ("auto", "default"),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}
_CHAT_ONLY: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "chat_template": (),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "mm_processor_kwargs": (),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "store": (False,),
    "thinking_token_budget": (),
    "verbosity": ("medium",),
    "web_search_options": (),
}
_COMPLETION_ONLY: dict[str, tuple[Any, ...]] = {
    "prompt_embeds": (),
    "suffix": ("",),
}

RESPONSES_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "access_programs": (),
    "background": (False,),
    "background_options": (),
    "context_management": ([],),
    "conversation": (),
    "image": (),
    "max_tool_calls": (),
    "moderation": (),
    "previous_response_id": (),
    "prompt": (),
    "prompt_cache_options": (),
    "reasoning": ({}, {"effort": "none"}),
    "service_tier": ("auto", "default"),
    "store": (False,),  # nothing is stored; a client that says nothing is served
    "truncation": ("disabled",),
}
"""Name -> values that ask for nothing, for responses."""
CHAT_FIELDS: Mapping[str, tuple[Any, ...]] = _COMMON | _CHAT_ONLY
"""Name -> values that ask for nothing, for chat completions."""
COMPLETION_FIELDS: Mapping[str, tuple[Any, ...]] = _COMMON | _COMPLETION_ONLY
"""Name -> values that ask for nothing, for completions."""


def asks_for_nothing(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Tell whether ``value`` is unset or one of the ``neutral`` values (where 1 is not True)."""
    if value is None:
        return True
    return any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in neutral)
