"""Answers of /v1/responses: an object of items, and streams of events that build it up."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kernelflume.core.sampling import FinishReason
from kernelflume.router.logprobs import chat_logprobs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kernelflume.core.sampling import TokenLogprobs
    from kernelflume.router.choice import Delta
    from kernelflume.router.completion import Usage
    from kernelflume.router.errors import ApiError
    from kernelflume.router.formats.base import AnswerHead, FinishedChoice
    from kernelflume.router.schemas.responses import ResponsesRequest
    from kernelflume.router.tools.calls import CallDelta


@dataclass(slots=True)
class _Message:
    """A message that is being written; ``number`` is its place among the items."""

    number: int
    item_id: str
    text: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    def item(self, status: str) -> dict[str, Any]:
        content = [self.part()] if status != "in_progress" else []
        return {
            "id": self.item_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def part(self) -> dict[str, Any]:
        text = "".join(self.text)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self.logprobs}


@dataclass(slots=True)
class _Call:
    """A call that is being written."""

    number: int
    item_id: str
    call_id: str
    name: str
    arguments: list[str] = field(default_factory=list)

    def item(self, status: str) -> dict[str, Any]:
        return {
            "id": self.item_id,
            "type": "function_call",
            "status": status,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": "".join(self.arguments),
        }


class ResponsesFormat:
    """Builds the response item by item. Used by one request only."""

    def __init__(self, request: ResponsesRequest, head: AnswerHead) -> None:
        self._request = request
        self._head = head
        self._items: list[dict[str, Any]] = []
        self._open: _Message | _Call | None = None
        self._num_events = 0
        self._reason: str | None = None

    def begin(self) -> str:
        """Return the events that a stream begins with."""
        response = self._response("in_progress", None)
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def events(self, index: int, delta: Delta, usage: Callable[[], Usage]) -> str:  # noqa: ARG002 - of the seam
        """Return the events for what was added; empty if it has nothing to show."""
        parts = []
        if delta.text or (delta.logprobs and not delta.calls and not isinstance(self._open, _Call)):
            parts.append(self._add_text(delta))
        parts += map(self._add_call, delta.calls)
        if delta.finish_reason is not None:
            self._reason = delta.finish_reason
            if self._open is None and not self._items:
                parts.append(self._open_message())
            parts.append(self._close(self._item_status))
        return "".join(parts)

    def end(self, usage: Usage) -> str:
        """Return the event that a stream ends with."""
        status = self._item_status
        return self._event(f"response.{status}", response=self._response(status, usage))

    def fail(self, error: ApiError) -> str:
        """Return the events that a stream ends with when it fails."""
        said = self._event("error", code=error.code, message=error.message, param=error.param)
        response = self._response("failed", None)
        response["error"] = {"code": error.code or error.type, "message": error.message}
        return said + self._event("response.failed", response=response)

    def whole(self, choices: Sequence[FinishedChoice], usage: Usage) -> dict[str, Any]:
        """Return the answer to a request that does not stream."""
        choice = choices[0]
        self._reason = choice.finish_reason
        if choice.text or not choice.calls:
            message = _Message(0, _new_id("msg"), [choice.text], self._logprobs(choice))
            self._items.append(message.item(self._item_status if not choice.calls else "completed"))
        for number, call in enumerate(choice.calls, start=1):
            last = number == len(choice.calls)
            item = _Call(0, _new_id("fc"), call.call_id, call.name, [call.arguments])
            self._items.append(item.item(self._item_status if last else "completed"))
        return self._response(self._item_status, usage)

    @property
    def _item_status(self) -> str:
        return "incomplete" if self._reason == FinishReason.LENGTH else "completed"

    def _add_text(self, delta: Delta) -> str:
        before = ""
        if not isinstance(self._open, _Message):
            before = self._close("completed") + self._open_message()
        message = self._open
        if not isinstance(message, _Message):
            return before
        logprobs = self._logprobs(delta)
        message.text.append(delta.text)
        message.logprobs += logprobs
        return before + self._event(
            "response.output_text.delta",
            item_id=message.item_id,
            output_index=message.number,
            content_index=0,
            delta=delta.text,
            logprobs=logprobs,
        )

    def _open_message(self) -> str:
        message = _Message(len(self._items), _new_id("msg"))
        self._open = message
        return self._event(
            "response.output_item.added", output_index=message.number, item=message.item("in_progress")
        ) + self._event(
            "response.content_part.added",
            item_id=message.item_id,
            output_index=message.number,
            content_index=0,
            part=message.part(),
        )

    def _add_call(self, delta: CallDelta) -> str:
        before = ""
        if delta.name is not None:
            before = self._close("completed")
            call = _Call(len(self._items), _new_id("fc"), delta.call_id or "", delta.name)
            self._open = call
            before += self._event(
                "response.output_item.added", output_index=call.number, item=call.item("in_progress")
            )
        if not isinstance(self._open, _Call) or not delta.arguments:
            return before
        self._open.arguments.append(delta.arguments)
        return before + self._event(
            "response.function_call_arguments.delta",
            item_id=self._open.item_id,
            output_index=self._open.number,
            delta=delta.arguments,
        )

    def _close(self, status: str) -> str:
        """Return the events that end the open item, if there is one."""
        match self._open:
            case None:
                return ""
            case _Message() as message:
                place = {"item_id": message.item_id, "output_index": message.number, "content_index": 0}
                part = message.part()
                text = self._event(
                    "response.output_text.done", **place, text=part["text"], logprobs=message.logprobs
                ) + self._event("response.content_part.done", **place, part=part)
            case _Call() as call:
                text = self._event(
                    "response.function_call_arguments.done",
                    item_id=call.item_id,
                    output_index=call.number,
                    arguments="".join(call.arguments),
                )
        item = self._open.item(status)
        self._items.append(item)
        text += self._event("response.output_item.done", output_index=self._open.number, item=item)
        self._open = None
        return text

    def _logprobs(self, part: Delta | FinishedChoice) -> list[dict[str, Any]]:
        if self._head.token_bytes is None:
            return []
        logprobs: Sequence[TokenLogprobs] = part.logprobs
        found = chat_logprobs(part.token_ids[: len(logprobs)], logprobs, self._head.token_bytes)
        content: list[dict[str, Any]] = found["content"]
        return content

    def _event(self, name: str, **fields: Any) -> str:
        number, self._num_events = self._num_events, self._num_events + 1
        payload = {"type": name, "sequence_number": number, **fields}
        return f"event: {name}\ndata: {json.dumps(payload, ensure_ascii=False)}\n\n"

    def _response(self, status: str, usage: Usage | None) -> dict[str, Any]:
        request = self._request
        return {
            "id": self._head.answer_id,
            "object": "response",
            "created_at": self._head.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata,
            "model": self._head.model,
            "output": list(self._items),
            "parallel_tool_calls": request.parallel_tool_calls,
            "previous_response_id": None,
            "prompt_cache_key": request.prompt_cache_key,
            "prompt_cache_retention": request.prompt_cache_retention,
            "reasoning": {"effort": None, "summary": None},
            "service_tier": "default",
            "store": False,
            "temperature": request.temperature,
            "text": {"format": request.text.format.model_dump(by_alias=True, exclude_none=True)},
            "tool_choice": request.tool_choice,
            "tools": [tool.model_dump() for tool in request.tools],
            "top_logprobs": request.top_logprobs or 0,
            "top_p": request.top_p,
            "truncation": "disabled",
            "usage": None if usage is None else _usage(usage),
            "user": request.user,
        }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.num_prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.num_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.num_completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.num_prompt_tokens + usage.num_completion_tokens,
    }


def _new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
