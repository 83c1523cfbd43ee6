"""Log probabilities as OpenAI's two kinds of answer write them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kernelflume.core.sampling import TokenLogprobs

    TokenBytes = Callable[[int], bytes]
    """The bytes that a token stands for, special tokens included."""

LOWEST = -9999.0
"""Stands for the logarithm of 0, which JSON cannot say; vLLM's number."""


def chat_logprobs(
    token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], token_bytes: TokenBytes
) -> dict[str, Any]:
    """Return the ``logprobs`` of a chat choice for these tokens."""

    def entry(token_id: int, value: float) -> dict[str, Any]:
        raw = token_bytes(token_id)
        return {"token": _text(raw), "logprob": _finite(value), "bytes": list(raw)}

    return {
        "content": [
            entry(token_id, found.logprob) | {"top_logprobs": [entry(*pair) for pair in found.top]}
            for token_id, found in zip(token_ids, logprobs, strict=True)
        ],
        "refusal": None,
    }


def completion_logprobs(
    token_ids: Sequence[int],
    logprobs: Sequence[TokenLogprobs | None],
    token_bytes: TokenBytes,
    *,
    offset: int,
) -> dict[str, Any]:
    """Return the ``logprobs`` of a completion's choice for these tokens.

    Args:
        token_ids: the tokens.
        logprobs: of each; None for a prompt's first token, before which there is nothing.
        token_bytes: what tokens stand for.
        offset: characters of the tokens before these.
    """
    texts = [_text(token_bytes(token_id)) for token_id in token_ids]
    offsets: list[int] = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    tops: list[dict[str, float] | None] = []
    for text, found in zip(texts, logprobs, strict=True):
        if found is None:
            tops.append(None)
            continue
        # Two tokens may have one text: the likelier speaks for it. The chosen token is always among them.
        top: dict[str, float] = {}
        for token_id, value in found.top:
            top.setdefault(_text(token_bytes(token_id)), _finite(value))
        top.setdefault(text, _finite(found.logprob))
        tops.append(top)
    return {
        "tokens": texts,
        "token_logprobs": [None if found is None else _finite(found.logprob) for found in logprobs],
        "top_logprobs": tops,
        "text_offset": offsets,
    }


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _finite(value: float) -> float:
    return max(value, LOWEST)
