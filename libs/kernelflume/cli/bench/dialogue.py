"""What a request says: prompts as token ids or chat messages, and the history that the next one extends."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelflume.cli.bench.tokens import words_of
from kernelflume.cli.bench.workload import ExtendingPrompt, HashedPrompt

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kernelflume.cli.bench.answer import Answer
    from kernelflume.cli.bench.tokens import TokenSource
    from kernelflume.cli.bench.workload import Turn


class Api(StrEnum):
    """Which of the two endpoints is asked."""

    COMPLETIONS = "completions"
    CHAT = "chat"

    @property
    def path(self) -> str:
        """Path below /v1."""
        return "/completions" if self is Api.COMPLETIONS else "/chat/completions"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt ready to be sent."""

    fields: dict[str, Any]
    """Those of the body that carry it."""
    num_tokens: int
    """As planned; what the server counted is in its usage."""
    hit_tokens: int
    """Leading tokens that a cache without an end would hold."""


class Dialogue:
    """The history of one conversation; empty for prompts that are told whole."""

    def __init__(self, name: str, source: TokenSource, api: Api) -> None:
        self._name = name
        self._source = source
        self._api = api
        self._num_parts = 0
        self._ids: list[NDArray[np.int64]] = []
        self._messages: list[dict[str, str]] = []
        self._num_tokens = 0
        self._num_known = 0

    def prompt(self, turn: Turn) -> Prompt:
        """Make a turn's prompt."""
        if isinstance(turn.prompt, HashedPrompt):
            ids = self._source.prompt_ids(turn.prompt)
            return self._told(ids, turn.prompt.num_tokens, turn.hit_tokens)
        return self._extended(turn.prompt, turn.hit_tokens)

    def answered(self, turn: Turn, answer: Answer) -> None:
        """Add an answer to the history.

        Where the server does not tell the answer's token ids, as many others stand for it.
        """
        if isinstance(turn.prompt, HashedPrompt):
            return
        num_output = answer.num_output
        prompt_tokens = self._num_tokens if answer.num_prompt is None else answer.num_prompt
        self._num_tokens = prompt_tokens + num_output
        self._num_known = self._num_tokens - 1  # no one has computed keys and values of the last token
        if self._api is Api.CHAT:
            self._messages.append({"role": "assistant", "content": answer.text})
        elif len(answer.token_ids) == num_output:
            self._ids.append(np.array(answer.token_ids, np.int64))
        else:
            self._ids.append(self._fresh(num_output))
            self._num_known = prompt_tokens

    def _extended(self, prompt: ExtendingPrompt, hit_tokens: int) -> Prompt:
        hit = self._num_known or hit_tokens
        fresh = self._fresh(prompt.num_new)
        shared = self._source.text_ids("shared", 0, prompt.num_shared)
        self._num_tokens += prompt.num_shared + prompt.num_new
        if self._api is Api.COMPLETIONS:
            self._ids += [shared, fresh]
            ids = np.concatenate(self._ids)
            self._ids = [ids]
            return Prompt({"prompt": ids.tolist()}, self._num_tokens, hit)
        if prompt.num_shared:
            self._messages.append({"role": "system", "content": words_of(shared)})
        self._messages.append({"role": "user", "content": words_of(fresh)})
        return Prompt({"messages": self._messages}, self._num_tokens, hit)

    def _told(self, ids: NDArray[np.int64], num_tokens: int, hit_tokens: int) -> Prompt:
        if self._api is Api.COMPLETIONS:
            return Prompt({"prompt": ids.tolist()}, num_tokens, hit_tokens)
        return Prompt({"messages": [{"role": "user", "content": words_of(ids)}]}, num_tokens, hit_tokens)

    def _fresh(self, num_tokens: int) -> NDArray[np.int64]:
        self._num_parts += 1
        return self._source.text_ids(self._name, self._num_parts, num_tokens)
