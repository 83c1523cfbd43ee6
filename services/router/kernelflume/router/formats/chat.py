"""Answers of /v1/chat/completions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kernelflume.router.formats.base import ChoiceFormat, ending, json_text
from kernelflume.router.logprobs import chat_logprobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.router.choice import Delta
    from kernelflume.router.completion import Usage
    from kernelflume.router.formats.base import FinishedChoice
    from kernelflume.router.tools.calls import CallDelta


class ChatFormat(ChoiceFormat):
    """Answers of /v1/chat/completions."""

    chunk_object = "chat.completion.chunk"
    whole_object = "chat.completion"
    before_text = '"delta":{"content":'
    after_text = "}"

    def opening(self, index: int, usage: Usage | None = None) -> str | None:
        """Return the chunk that says who speaks."""
        end = self._end_of(usage)
        if self._head.with_token_ids:
            end = f'{end[:-1]},"prompt_token_ids":{json.dumps(list(self._head.prompts[0]))}}}'
        return (
            f'{self._begin}{{"index":{index},"delta":{{"role":"assistant","content":""}},'
            f'"logprobs":null,"finish_reason":null}}{end}'
        )

    def chunk(self, index: int, delta: Delta, usage: Usage | None = None) -> str | None:
        """Return the JSON of a chunk, or None if the delta has nothing to show."""
        if not self._shows(delta):
            return None
        self._unopened.discard(index)
        content = f'"content":{json_text(delta.text)}' if delta.text else ""
        if delta.calls:
            calls = ",".join(map(_call_chunk, delta.calls))
            content = f'{content},"tool_calls":[{calls}]' if content else f'"tool_calls":[{calls}]'
        end = ending(delta, logprobs=self._logprobs(delta), with_token_ids=self._head.with_token_ids)
        return f'{self._begin}{{"index":{index},"delta":{{{content}}}{end}}}{self._end_of(usage)}'

    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> dict[str, Any]:
        """Return the answer to a request that does not stream."""
        answer = self._frame(
            usage,
            [
                self._choice(index, choice)
                | {
                    "message": _message(choice),
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


def _call_chunk(call: CallDelta) -> str:
    if call.name is None:
        return f'{{"index":{call.index},"function":{{"arguments":{json_text(call.arguments)}}}}}'
    return (
        f'{{"index":{call.index},"id":"{call.call_id}","type":"function",'
        f'"function":{{"name":{json_text(call.name)},"arguments":{json_text(call.arguments)}}}}}'
    )


def _message(choice: FinishedChoice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.calls:
        message["content"] = choice.text or None
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in choice.calls
        ]
    return message
