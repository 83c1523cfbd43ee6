"""Server-sent events out of bytes as they come, and what each says of an answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kernelflume.cli.bench.answer import OK, STREAM_ERROR
from kernelflume.core.errors import UnavailableError
from kernelflume.core.figures import is_whole

if TYPE_CHECKING:
    from kernelflume.cli.bench.answer import Answer

MAX_EVENT_BYTES = 8 * 1024 * 1024
_DETAIL_CHARACTERS = 300
_MAX_COUNT = 2**53
_TEXTS = ("content", "reasoning_content", "reasoning")


class EventParser:
    """Cuts a stream of bytes into the data of its events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data lines that are complete now.

        Raises:
            UnavailableError: a line has no end.
        """
        lines = (self._rest + data if self._rest else data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MAX_EVENT_BYTES:
            raise UnavailableError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


def apply_event(answer: Answer, data: bytes, now_s: float, *, keep_text: bool) -> None:
    """Add what an event says to an answer.

    Raises:
        UnavailableError: it is no JSON object.
    """
    if data == b"[DONE]":
        # An event after which the server ends the stream in order; an error told before it stays.
        answer.status = answer.status if answer.status == STREAM_ERROR else OK
        return
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UnavailableError(f"an event that is no JSON: {data[:80]!r}") from error
    if not isinstance(fields, dict):
        raise UnavailableError(f"an event that is no JSON object: {data[:80]!r}")
    if told := fields.get("error"):
        answer.status, answer.detail = STREAM_ERROR, error_text(told)
        return
    if isinstance(usage := fields.get("usage"), dict):
        _apply_usage(answer, usage)
    choices = fields.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        _apply_choice(answer, choices[0], now_s, keep_text=keep_text)


def error_text(error: Any) -> str:
    """Return the message of an OpenAI error, or whatever stands there, not too long."""
    if isinstance(error, dict):
        error = error.get("message", error)
    text = str(error)[:_DETAIL_CHARACTERS]
    return "".join(character if character.isprintable() else " " for character in text)


def _apply_usage(answer: Answer, usage: dict[str, Any]) -> None:
    answer.num_prompt = _count(usage.get("prompt_tokens"), answer.num_prompt)
    answer.num_counted_output = _count(usage.get("completion_tokens"), answer.num_counted_output)
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict):
        answer.num_cached = _count(details.get("cached_tokens"), answer.num_cached)


def _count(value: Any, otherwise: int | None) -> int | None:
    # Sums of these become floating-point numbers: what cannot is no count.
    return value if is_whole(value) and 0 <= value < _MAX_COUNT else otherwise


def _apply_choice(answer: Answer, choice: dict[str, Any], now_s: float, *, keep_text: bool) -> None:
    delta = choice.get("delta")
    source = delta if isinstance(delta, dict) else choice
    names = _TEXTS if source is delta else ("text",)
    texts = [text for name in names if isinstance(text := source.get(name), str) and text]
    token_ids = choice.get("token_ids")
    if isinstance(token_ids, list) and token_ids:
        answer.token_ids.extend(token for token in token_ids if isinstance(token, int) and 0 <= token < 2**31)
    if texts or token_ids or source.get("tool_calls"):
        answer.arrived(now_s)
    elif choice.get("finish_reason") and answer.first_s is None:
        answer.arrived(now_s)  # tokens that show no text: all that is known is that they are there now
    if keep_text:
        answer.pieces += texts
