"""Answers as OpenAI writes them: whole ones as objects, chunks as JSON text built without a detour."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kernelflume.router.streaming import DONE, FRAME_END, event

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kernelflume.core.sampling import TokenLogprobs
    from kernelflume.router.choice import Delta
    from kernelflume.router.completion import Usage
    from kernelflume.router.errors import ApiError
    from kernelflume.router.logprobs import TokenBytes
    from kernelflume.router.tools.calls import ToolCall


@dataclass(frozen=True, slots=True)
class FinishedChoice:
    """One choice as a whole."""

    text: str
    token_ids: Sequence[int]
    finish_reason: str
    stop_reason: str | int | None
    logprobs: Sequence[TokenLogprobs] = ()
    """Of the tokens, but for an eos or stop token at their end, where asked for."""
    prompt_logprobs: Sequence[TokenLogprobs] = ()
    """Of the prompt's tokens but the first, where asked for."""
    calls: Sequence[ToolCall] = ()
    """What it calls; its text then is what stands beside."""


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What all parts of one answer have in common."""

    answer_id: str
    created: int
    """Unix time in seconds."""
    model: str
    prompts: Sequence[Sequence[int]]
    """Token ids of each prompt."""
    choices_per_prompt: int
    echoes: Sequence[str]
    """Text to begin each choice of a prompt with; empty unless asked for."""
    with_token_ids: bool
    with_usage: bool
    """A stream ends with its usage."""
    continuous_usage: bool = False
    """Each chunk of a stream has the usage so far."""
    token_bytes: TokenBytes | None = None
    """What tokens stand for, where log probabilities were asked for."""


class AnswerFormat(Protocol):
    """How one kind of request is answered. Used by one request only."""

    def begin(self) -> str:
        """Return the events that a stream begins with."""
        ...

    def events(self, index: int, delta: Delta, usage: Callable[[], Usage]) -> str:
        """Return the events for what was added to a choice; empty if it has nothing to show."""
        ...

    def end(self, usage: Usage) -> str:
        """Return the events that a stream ends with."""
        ...

    def fail(self, error: ApiError) -> str:
        """Return the events that a stream ends with when it fails."""
        ...

    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> dict[str, Any]:
        """Return the answer to a request that does not stream."""
        ...


_ENCODER = json.JSONEncoder(ensure_ascii=False)
"""``json.dumps`` would make one for each text."""


def json_text(value: str) -> str:
    """Return a text as JSON."""
    return _ENCODER.encode(value)


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return the usage as both chat and completions write it."""
    return {
        "prompt_tokens": usage.num_prompt_tokens,
        "completion_tokens": usage.num_completion_tokens,
        "total_tokens": usage.num_prompt_tokens + usage.num_completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.num_cached_tokens},
    }


def ending(delta: Delta, *, logprobs: dict[str, Any] | None, with_token_ids: bool) -> str:
    """Return the end of a choice in a chunk: how likely its tokens were, why it ended, and its tokens."""
    likely = "null" if logprobs is None else json.dumps(logprobs, ensure_ascii=False)
    if delta.finish_reason is None:
        text = f',"logprobs":{likely},"finish_reason":null'
    else:
        text = (
            f',"logprobs":{likely},"finish_reason":"{delta.finish_reason}"'
            f',"stop_reason":{json.dumps(delta.stop_reason, ensure_ascii=False)}'
        )
    return f'{text},"token_ids":{json.dumps(list(delta.token_ids))}' if with_token_ids else text


class ChoiceFormat:
    """What answers with choices share: those of chat and of completions."""

    chunk_object: str
    whole_object: str
    before_text: str
    """What a chunk has between a choice's index and its text, where the text is all that it has."""
    after_text: str

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._begin = (
            f'{{"id":{json_text(head.answer_id)},"object":"{self.chunk_object}",'
            f'"created":{head.created},"model":{json_text(head.model)},"choices":['
        )
        self._end = '],"usage":null}' if head.with_usage else "]}"
        self._unopened = set(range(len(head.prompts) * head.choices_per_prompt))
        self._opened: set[int] = set()
        self._has_plain_frames = not (
            head.with_token_ids or head.continuous_usage or head.token_bytes is not None
        )
        self._plain_begins: dict[int, str] = {}
        self._plain_end = (
            f'{self.after_text},"logprobs":null,"finish_reason":null}}{self._end_of(None)}{FRAME_END}'
        )

    def begin(self) -> str:
        """Return the events that a stream begins with: none."""
        return ""

    def opening(self, index: int, usage: Usage | None = None) -> str | None:
        """Return the JSON of the chunk that comes before a choice's first text, if there is one."""
        raise NotImplementedError

    def chunk(self, index: int, delta: Delta, usage: Usage | None = None) -> str | None:
        """Return the JSON of a chunk, or None if the delta has nothing to show."""
        raise NotImplementedError

    def events(self, index: int, delta: Delta, usage: Callable[[], Usage]) -> str:
        """Return the events for what was added to a choice; empty if it has nothing to show."""
        if delta.text and delta.finish_reason is None and not delta.calls:
            # Nearly all of them: but for their text they are alike.
            begin = self._plain_begins.get(index)
            if begin is not None:
                return f"{begin}{json_text(delta.text)}{self._plain_end}"
        events = self.general_events(index, delta, usage)
        if self._has_plain_frames and index in self._opened and index not in self._unopened:
            self._plain_begins[index] = f'data: {self._begin}{{"index":{index},{self.before_text}'
        return events

    def general_events(self, index: int, delta: Delta, usage: Callable[[], Usage]) -> str:
        """Return the events for any delta, without a short way."""
        text = ""
        so_far = usage() if self._head.continuous_usage else None
        if index not in self._opened:
            self._opened.add(index)
            opening = self.opening(index, so_far)
            text = "" if opening is None else event(opening)
        chunk = self.chunk(index, delta, so_far)
        return text if chunk is None else text + event(chunk)

    def end(self, usage: Usage) -> str:
        """Return the events that a stream ends with."""
        return event(self.usage_chunk(usage)) + DONE if self._head.with_usage else DONE

    def fail(self, error: ApiError) -> str:
        """Return the events that a stream ends with when it fails."""
        return event(error.to_json())

    def usage_chunk(self, usage: Usage) -> str:
        """Return the JSON of the chunk with the usage."""
        return f'{self._begin}],"usage":{json.dumps(usage_object(usage))}}}'

    def _end_of(self, usage: Usage | None) -> str:
        return self._end if usage is None else f'],"usage":{json.dumps(usage_object(usage))}}}'

    def _frame(self, usage: Usage, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._head.answer_id,
            "object": self.whole_object,
            "created": self._head.created,
            "model": self._head.model,
            "choices": choices,
            "usage": usage_object(usage),
        }

    def _choice(self, index: int, choice: FinishedChoice) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "index": index,
            "logprobs": None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        return fields | ({"token_ids": list(choice.token_ids)} if self._head.with_token_ids else {})

    def _shows(self, delta: Delta) -> bool:
        """Tell whether a delta is worth a chunk."""
        has_ids = self._head.with_token_ids and bool(delta.token_ids)
        return bool(delta.text or delta.calls or delta.logprobs) or delta.finish_reason is not None or has_ids
