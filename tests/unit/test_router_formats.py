from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kernelflume.core.sampling import FinishReason
from kernelflume.router.choice import Delta
from kernelflume.router.completion import Usage
from kernelflume.router.formats import AnswerHead, ChatFormat, CompletionFormat, FinishedChoice

HEAD = AnswerHead(
    answer_id="id-1",
    created=5,
    model='na"me',
    prompts=[[1, 2], [3]],
    choices_per_prompt=2,
    echoes=["", "echo "],
    with_token_ids=False,
    with_usage=False,
)
ODD = 'q"\\\n\u2028\x00é😀'


@pytest.mark.parametrize("kind", [ChatFormat, CompletionFormat])
@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("usage", [False, True])
def test_chunks_are_json_on_one_line_with_the_text_unchanged(
    kind: type[ChatFormat | CompletionFormat], ids: bool, usage: bool
) -> None:
    answer_format = kind(replace(HEAD, with_token_ids=ids, with_usage=usage))
    for delta in (Delta(ODD, [4]), Delta("", [5], FinishReason.STOP, ODD)):
        text = answer_format.chunk(1, delta)
        assert text is not None
        assert "\n" not in text
        chunk = json.loads(text)
        choice = chunk["choices"][0]
        shown = choice["delta"].get("content", "") if kind is ChatFormat else choice["text"]
        assert shown == delta.text
        assert choice["index"] == 1
        assert choice["finish_reason"] == delta.finish_reason
        assert choice.get("token_ids") == (list(delta.token_ids) if ids else None)
        assert chunk["model"] == 'na"me'
        assert ("usage" in chunk) == usage
    assert choice["stop_reason"] == ODD


def test_a_delta_without_news_gives_no_chunk() -> None:
    assert ChatFormat(HEAD).chunk(0, Delta("", [1])) is None
    assert CompletionFormat(HEAD).chunk(0, Delta("", [1])) is None
    assert ChatFormat(replace(HEAD, with_token_ids=True)).chunk(0, Delta("", [1])) is not None


def test_the_echo_comes_once_even_before_any_text() -> None:
    answer_format = CompletionFormat(HEAD)
    first = answer_format.chunk(2, Delta("", [1]))
    assert first is not None
    assert json.loads(first)["choices"][0]["text"] == "echo "
    second = answer_format.chunk(2, Delta("a", [1]))
    assert second is not None
    assert json.loads(second)["choices"][0]["text"] == "a"


def test_prompt_ids_belong_to_the_answer_of_a_chat_and_to_the_choice_of_a_completion() -> None:
    head = replace(HEAD, with_token_ids=True)
    usage = Usage(3, 1, 2)
    choices = [FinishedChoice("a", [9], "stop", None)] * 4
    chat = ChatFormat(head).whole(choices, usage)
    assert chat["prompt_token_ids"] == [1, 2]
    assert chat["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    completion = CompletionFormat(head).whole(choices, usage)
    assert [choice["prompt_token_ids"] for choice in completion["choices"]] == [[1, 2], [1, 2], [3], [3]]
    assert [choice["text"] for choice in completion["choices"]] == ["a", "a", "echo a", "echo a"]
    opening = ChatFormat(head).opening(0)
    assert opening is not None
    assert json.loads(opening)["prompt_token_ids"] == [1, 2]
    assert json.loads(ChatFormat(head).usage_chunk(usage))["usage"]["total_tokens"] == 4
