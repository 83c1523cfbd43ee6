"""Log probabilities in OpenAI's shapes."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from kernelflume.core.sampling import FinishReason, TokenLogprobs
from kernelflume.router.choice import ChoiceText, Delta
from kernelflume.router.completion import Usage
from kernelflume.router.detokenizer import BytesDetokenizer
from kernelflume.router.formats import AnswerHead, ChatFormat, CompletionFormat, FinishedChoice
from kernelflume.router.generation import Batch
from kernelflume.router.logprobs import chat_logprobs, completion_logprobs

TABLE = [b"a", b"bc", "é".encode()[:1], "é".encode()[1:], b"a", b"<end>"]
USAGE = Usage(2, 2, 0)


def head(*, echo: str = "") -> AnswerHead:
    return AnswerHead(
        answer_id="id",
        created=5,
        model="m",
        prompts=[[0, 1]],
        choices_per_prompt=1,
        echoes=[echo],
        with_token_ids=False,
        with_usage=False,
        token_bytes=TABLE.__getitem__,
    )


def found(value: float, *top: tuple[int, float]) -> TokenLogprobs:
    return TokenLogprobs(value, top)


def test_chat_entries_have_text_bytes_and_alternatives() -> None:
    shape = chat_logprobs(
        [2, 1], [found(-1.0), found(-math.inf, (0, -0.5), (1, -math.inf))], TABLE.__getitem__
    )
    first, second = shape["content"]
    assert first == {"token": "\ufffd", "logprob": -1.0, "bytes": [0xC3], "top_logprobs": []}
    assert (second["token"], second["logprob"]) == ("bc", -9999.0)
    assert [entry["token"] for entry in second["top_logprobs"]] == ["a", "bc"]
    json.dumps(shape, allow_nan=False)


def test_completion_entries_are_columns_with_the_chosen_token_among_the_top() -> None:
    shape = completion_logprobs(
        [1, 0], [None, found(-2.0, (4, -0.5), (1, -0.7))], TABLE.__getitem__, offset=7
    )
    assert shape == {
        "tokens": ["bc", "a"],
        "token_logprobs": [None, -2.0],
        "top_logprobs": [None, {"a": -0.5, "bc": -0.7}],
        "text_offset": [7, 9],
    }


def parts(answer_format: Any, *deltas: Delta) -> list[Any]:
    chunks = [answer_format.chunk(0, delta) for delta in deltas]
    return [json.loads(chunk)["choices"][0]["logprobs"] for chunk in chunks if chunk is not None]


@pytest.mark.parametrize("kind", [ChatFormat, CompletionFormat])
def test_a_stream_carries_what_the_whole_answer_does(kind: Any) -> None:
    ends = Delta("bc", [1, 5], FinishReason.STOP, logprobs=[found(-2.0)])
    silent = Delta("", [2], logprobs=[found(-3.0)])  # half a character: no text yet
    streamed = parts(kind(head()), Delta("a", [0], logprobs=[found(-1.0)]), silent, ends)
    everything = [found(-1.0), found(-3.0), found(-2.0)]
    whole = kind(head()).whole([FinishedChoice("abc", [0, 2, 1, 5], "stop", None, everything)], USAGE)
    expected = whole["choices"][0]["logprobs"]
    for name in ("content",) if kind is ChatFormat else ("tokens", "token_logprobs", "text_offset"):
        assert [item for part in streamed for item in part[name]] == expected[name]
        assert len(expected[name]) == 3


def test_an_echo_begins_with_the_prompts_own() -> None:
    delta = Delta("a", [0], FinishReason.LENGTH, logprobs=[found(-1.0)], prompt_logprobs=[found(-4.0)])
    [streamed] = parts(CompletionFormat(head(echo="abc")), delta)
    whole = CompletionFormat(head(echo="abc")).whole(
        [FinishedChoice("a", [0], "length", None, [found(-1.0)], [found(-4.0)])], USAGE
    )
    assert streamed == whole["choices"][0]["logprobs"]
    assert streamed["token_logprobs"] == [None, -4.0, -1.0]
    assert streamed["text_offset"] == [0, 1, 3]


def test_a_choice_keeps_the_entries_of_the_tokens_it_takes() -> None:
    text = ChoiceText(BytesDetokenizer(TABLE), stops=["bc"])
    entries = [found(-1.0), found(-2.0), found(-3.0)]
    delta = text.add(Batch([0, 1, 0], None, None, entries, [found(-9.0)]))
    assert delta.finish_reason == "stop"
    assert list(delta.logprobs) == entries[:2]
    assert list(delta.prompt_logprobs) == [found(-9.0)]


def test_with_an_eos_at_the_end_there_is_one_entry_less() -> None:
    delta = ChoiceText(BytesDetokenizer(TABLE)).add(Batch([0], FinishReason.STOP, 5, [found(-1.0)]))
    assert list(delta.token_ids) == [0, 5]
    assert list(delta.logprobs) == [found(-1.0)]


def test_nothing_is_generated_where_only_the_prompt_is_wanted() -> None:
    text = ChoiceText(BytesDetokenizer(TABLE), prompt_only=True)
    delta = text.add(Batch([0], None, None, [found(-1.0)], [found(-9.0)]))
    assert (delta.text, list(delta.token_ids), delta.finish_reason) == ("", [], "length")
    assert list(delta.prompt_logprobs) == [found(-9.0)]
    assert text.num_tokens == 0
