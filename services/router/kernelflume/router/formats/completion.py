"""Answers of /v1/completions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kernelflume.router.formats.base import AnswerHead, ChoiceFormat, ending, json_text
from kernelflume.router.logprobs import completion_logprobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.core.sampling import TokenLogprobs
    from kernelflume.router.choice import Delta
    from kernelflume.router.completion import Usage
    from kernelflume.router.formats.base import FinishedChoice


class CompletionFormat(ChoiceFormat):
    """Answers of /v1/completions."""

    chunk_object = "text_completion"
    whole_object = "text_completion"
    before_text = '"text":'
    after_text = ""

    def __init__(self, head: AnswerHead) -> None:
        super().__init__(head)
        self._offsets: dict[int, int] = {}

    def opening(self, index: int, usage: Usage | None = None) -> str | None:  # noqa: ARG002 - there is none
        """Return None: a completion begins with its text."""
        return None

    def chunk(self, index: int, delta: Delta, usage: Usage | None = None) -> str | None:
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
        end = ending(delta, logprobs=logprobs, with_token_ids=self._head.with_token_ids)
        return f'{self._begin}{{"index":{index},"text":{json_text(text)}{end}{extra}}}{self._end_of(usage)}'

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
