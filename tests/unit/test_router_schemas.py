from __future__ import annotations

import json
from typing import Any

import pytest

from kernelflume.core.errors import InvalidRequestError
from kernelflume.router.schemas import ChatCompletionRequest, CompletionRequest, parse

MESSAGES: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}


def chat(**fields: Any) -> ChatCompletionRequest:
    return parse(ChatCompletionRequest, json.dumps(MESSAGES | fields).encode())


def completion(**fields: Any) -> CompletionRequest:
    return parse(CompletionRequest, json.dumps({"prompt": "a"} | fields).encode())


def test_null_means_unset_everywhere() -> None:
    nulls = dict.fromkeys(name for name in ChatCompletionRequest.model_fields if name != "messages")
    assert chat(**nulls, tools=None, audio=None) == chat()
    message = {"role": "user", "content": "Hi", "name": None, "tool_calls": None}
    assert chat(messages=[message]) == chat()


def test_values_that_ask_for_nothing_are_accepted() -> None:
    assert chat(tools=[], tool_choice="none", logprobs=False, logit_bias={}, best_of=1) == chat()
    assert chat(modalities=["text"], service_tier="auto") == chat()
    assert completion(suffix="", best_of=1) == completion()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [{}]),
        ("tool_choice", "required"),
        ("functions", [{}]),
        ("top_logprobs", 2),
        ("logit_bias", {"05": 1}),
        ("logit_bias", {"-5": 1}),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"5": "1"}),
        ("logit_bias", {"5": True}),
        ("logit_bias", {"9" * 5000: 1}),
        ("logit_bias", [5]),
        ("allowed_token_ids", [True]),
        ("audio", {}),
        ("modalities", ["text", "audio"]),
        ("best_of", 2),
        ("best_of", True),
        ("store", True),
        ("use_beam_search", True),
        ("prompt_logprobs", 0),
        ("chat_template", "x"),
        ("no_such_field", 0),
        ("prompt", "x"),
    ],
)
def test_what_is_not_served_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        chat(**{name: value})
    assert refused.value.parameter == name
    assert name in str(refused.value)


def test_a_name_with_braces_is_only_text() -> None:
    with pytest.raises(InvalidRequestError, match="image"):
        chat(messages=[{"role": "user", "content": [{"type": "image{reason}{0}"}]}])


def test_parts_of_text_are_joined_and_developer_is_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = chat(messages=[{"role": "developer", "content": parts, "name": "Ann"}])
    assert body.messages[0].for_template() == {"role": "system", "content": "a\nb", "name": "Ann"}


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ({"role": "tool", "content": "x"}, "messages[0]"),
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": [5]}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content"),
        ({"role": "user", "content": "x", "colour": 1}, "messages[0].colour"),
        ({"role": "assistant", "content": None, "tool_calls": [{}]}, "messages[0]"),
        ("x", "messages[0]"),
    ],
)
def test_bad_messages_are_named(message: Any, place: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        chat(messages=[message])
    assert refused.value.parameter == place


def test_stop_is_one_string_or_some_and_bounded() -> None:
    assert chat(stop="a").stop == ("a",)
    assert chat(stop=["a"] * 16).stop == ("a",) * 16
    too_many, too_long = ["a"] * 17, ["a" * 1025]
    bad: Any
    for bad in ("", [""], too_many, too_long, 5, [5], {}):
        with pytest.raises(InvalidRequestError) as refused:
            chat(stop=bad)
        assert refused.value.parameter == "stop"


@pytest.mark.parametrize(
    ("prompt", "read"),
    [
        ("a", ("a",)),
        ("", ("",)),
        ([1, 2], ((1, 2),)),
        (["a", "b"], ("a", "b")),
        ([[1], [2, 3]], ((1,), (2, 3))),
        (["a", [1]], ("a", (1,))),
    ],
)
def test_prompts_of_every_kind(prompt: Any, read: Any) -> None:
    assert completion(prompt=prompt).prompt == read


def test_max_completion_tokens_wins() -> None:
    assert chat(max_tokens=5).wanted_tokens == 5
    assert chat(max_tokens=5, max_completion_tokens=7).wanted_tokens == 7


def test_beginning_and_continuing_exclude_each_other() -> None:
    with pytest.raises(InvalidRequestError, match="cannot both"):
        chat(add_generation_prompt=True, continue_final_message=True)
    assert chat(add_generation_prompt=False, continue_final_message=True).continue_final_message
