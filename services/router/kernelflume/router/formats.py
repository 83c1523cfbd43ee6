"""Answers as OpenAI writes them: whole ones as objects, chunks as JSON text built without a detour."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kernelflume.router.logprobs import chat_logprobs, completion_logprobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.core.sampling import TokenLogprobs
    from kernelflume.router.choice import Delta
    from kernelflume.router.completion import Usage
    from kernelflume.router.logprobs import TokenBytes


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
    token_bytes: TokenBytes | None = None
    """What tokens stand for, where log probabilities were asked for."""


class AnswerFormat(Protocol):
    """How one kind of request is answered."""

    def opening(self, index: int) -> str | None:
        """Return the JSON of the chunk that comes before a choice's first text, if there is one."""
        ...

    def chunk(self, index: int, delta: Delta) -> str | None:
        """Return the JSON of a chunk, or None if the delta has nothing to show."""
        ...

    def usage_chunk(self, usage: Usage) -> str:
        """Return the JSON of the chunk with the usage."""
        ...

    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> dict[str, Any]:
        """Return the answer to a request that does not stream."""
        ...


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.num_prompt_tokens,
        "completion_tokens": usage.num_completion_tokens,
        "total_tokens": usage.num_prompt_tokens + usage.num_completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.num_cached_tokens},
    }


def _ending(delta: Delta, *, logprobs: dict[str, Any] | None, with_token_ids: bool) -> str:
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


class _Format:
    """The parts that both kinds of answer share."""

    chunk_object: str
    whole_object: str

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._begin = (
            f'{{"id":{_text(head.answer_id)},"object":"{self.chunk_object}",'
            f'"created":{head.created},"model":{_text(head.model)},"choices":['
        )
        self._end = '],"usage":null}' if head.with_usage else "]}"
        self._unopened = set(range(len(head.prompts) * head.choices_per_prompt))

    def usage_chunk(self, usage: Usage) -> str:
        """Return the JSON of the chunk with the usage."""
        return f'{self._begin}],"usage":{json.dumps(_usage(usage))}}}'

    def _frame(self, usage: Usage, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._head.answer_id,
            "object": self.whole_object,
            "created": self._head.created,
            "model": self._head.model,
            "choices": choices,
            "usage": _usage(usage),
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
        return bool(delta.text or delta.logprobs) or delta.finish_reason is not None or has_ids


class ChatFormat(_Format):
    """Answers of /v1/chat/completions."""

    chunk_object = "chat.completion.chunk"
    whole_object = "chat.completion"

    def opening(self, index: int) -> str | None:
        """Return the chunk that says who speaks."""
        end = self._end
        if self._head.with_token_ids:
            end = f'{end[:-1]},"prompt_token_ids":{json.dumps(list(self._head.prompts[0]))}}}'
        return (
            f'{self._begin}{{"index":{index},"delta":{{"role":"assistant","content":""}},'
            f'"logprobs":null,"finish_reason":null}}{end}'
        )

    def chunk(self, index: int, delta: Delta) -> str | None:
        """Return the JSON of a chunk, or None if the delta has nothing to show."""
        if not self._shows(delta):
            return None
        content = f'"content":{_text(delta.text)}' if delta.text else ""
        ending = _ending(delta, logprobs=self._logprobs(delta), with_token_ids=self._head.with_token_ids)
        return f'{self._begin}{{"index":{index},"delta":{{{content}}}{ending}}}{self._end}'

    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> dict[str, Any]:
        """Return the answer to a request that does not stream."""
        answer = self._frame(
            usage,
            [
                self._choice(index, choice)
                | {
                    "message": {"role": "assistant", "content": choice.text, "refusal": None},
                    "logprobs": self._logprobs(choice),
                }
                for index, choice in enumerate(choices)
            ],
        )
        if self._head.with_token_ids:
            answer["prompt_token_ids"] = list(self._head.prompts[0])
        return answer

    def _logprobs(self, part: Delta | FinishedChoice) -> dict[str, Any] | None:
        if self._head.token_bytes is None:
            return None
        # An eos or stop token that ended the choice has none.
        return chat_logprobs(part.token_ids[: len(part.logprobs)], part.logprobs, self._head.token_bytes)


class CompletionFormat(_Format):
    """Answers of /v1/completions."""

    chunk_object = "text_completion"
    whole_object = "text_completion"

    def __init__(self, head: AnswerHead) -> None:
        super().__init__(head)
        self._offsets: dict[int, int] = {}

    def opening(self, index: int) -> str | None:  # noqa: ARG002 - completions have no such chunk
        """Return None: a completion begins with its text."""
        return None

    def chunk(self, index: int, delta: Delta) -> str | None:
        """Return the JSON of a chunk, or None if the delta has nothing to show."""
        text = delta.text
        extra = ""
        is_first = index in self._unopened
        if index in self._unopened:
            echo = self._head.echoes[index // self._head.choices_per_prompt]
            if not echo and not self._shows(delta):
                return None
            self._unopened.discard(index)
            text = echo + text
            if self._head.with_token_ids:
                extra = f',"prompt_token_ids":{json.dumps(list(self._prompt(index)))}'
        elif not self._shows(delta):
            return None
        logprobs = self._logprobs(index, delta, is_first=is_first)
        ending = _ending(delta, logprobs=logprobs, with_token_ids=self._head.with_token_ids)
        return f'{self._begin}{{"index":{index},"text":{_text(text)}{ending}{extra}}}{self._end}'

    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> dict[str, Any]:
        """Return the answer to a request that does not stream."""
        parts: list[dict[str, Any]] = []
        for index, choice in enumerate(choices):
            echo = self._head.echoes[index // self._head.choices_per_prompt]
            part = self._choice(index, choice) | {
                "text": echo + choice.text,
                "logprobs": self._logprobs(index, choice, is_first=True),
            }
            if self._head.with_token_ids:
                part["prompt_token_ids"] = list(self._prompt(index))
            parts.append(part)
        return self._frame(usage, parts)

    def _logprobs(self, index: int, part: Delta | FinishedChoice, *, is_first: bool) -> dict[str, Any] | None:
        """Return the ``logprobs`` of a part of a choice; with an echo the first begins with the prompt's."""
        if self._head.token_bytes is None:
            return None
        token_ids = list(part.token_ids[: len(part.logprobs)])
        logprobs: list[TokenLogprobs | None] = list(part.logprobs)
        if is_first and self._head.echoes[index // self._head.choices_per_prompt]:
            token_ids = [*self._prompt(index), *token_ids]
            logprobs = [None, *part.prompt_logprobs, *logprobs]
        offset = self._offsets.get(index, 0)
        found = completion_logprobs(token_ids, logprobs, self._head.token_bytes, offset=offset)
        self._offsets[index] = offset + sum(map(len, found["tokens"]))
        return found

    def _prompt(self, index: int) -> Sequence[int]:
        return self._head.prompts[index // self._head.choices_per_prompt]
