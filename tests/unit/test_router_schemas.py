from __future__ import annotations

import json
from typing import Any

import pytest

from kernelflume.core.errors import InvalidRequestError
from kernelflume.router.schemas import ChatCompletionRequest, CompletionRequest, ResponsesRequest, parse
from kernelflume.router.tools.use import ToolMode

MESSAGES: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def with_parameters(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": schema}}


def chat(**fields: Any) -> ChatCompletionRequest:
    return parse(ChatCompletionRequest, json.dumps(MESSAGES | fields).encode())


def completion(**fields: Any) -> CompletionRequest:
    return parse(CompletionRequest, json.dumps({"prompt": "a"} | fields).encode())


def test_null_means_unset_everywhere() -> None:
    nulls = dict.fromkeys(name for name in ChatCompletionRequest.model_fields if name != "messages")
    assert chat(**nulls, audio=None) == chat()
    message = {"role": "user", "content": "Hi", "name": None, "tool_calls": None}
    assert chat(messages=[message]) == chat()


def test_values_that_ask_for_nothing_are_accepted() -> None:
    assert chat(logprobs=False, logit_bias={}) == chat()
    assert chat(n=2, best_of=2).n == completion(n=2, best_of=2).n == 2
    assert chat(best_of=1).n == 1
    assert chat(modalities=["text"], service_tier="auto") == chat()
    assert completion(suffix="") == completion()


def test_more_choices_can_be_made_than_are_given_unless_they_are_streamed() -> None:
    assert completion(n=2, best_of=5).num_candidates == 5
    assert completion(n=2).num_candidates == 2
    assert completion(n=2, best_of=2, stream=True).num_candidates == 2
    for fields in ({"n": 2, "best_of": 1}, {"best_of": 2, "stream": True}, {"best_of": 0}):
        with pytest.raises(InvalidRequestError, match="best_of") as refused:
            completion(**fields)
        assert refused.value.parameter == "best_of"


@pytest.mark.parametrize(
    ("name", "value"),
    [
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
    assert body.messages[0].for_template(as_objects=True) == {
        "role": "system",
        "content": "a\nb",
        "name": "Ann",
    }


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": [5]}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content"),
        ({"role": "user", "content": "x", "colour": 1}, "messages[0].colour"),
        ({"role": "assistant", "content": None, "tool_calls": [{}]}, "messages[0].tool_calls[0].id"),
        ({"role": "function", "content": "x"}, "messages[0]"),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, "messages[0].tool_calls"),
        ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": "x", "audio": {"id": "a"}}, "messages[0].audio"),
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


def test_calls_and_results_are_read_for_the_template() -> None:
    body = chat(
        messages=[
            {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
            {"role": "tool", "content": "5", "tool_call_id": "1"},
        ]
    )
    asked, answered = (message.for_template(as_objects=True) for message in body.messages)
    assert asked["content"] == ""
    assert asked["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": 1}}
    assert answered == {"role": "tool", "content": "5", "tool_call_id": "1"}
    broken = CALL | {"function": {"name": "f", "arguments": "no JSON"}}
    message = chat(messages=[{"role": "assistant", "tool_calls": [broken]}]).messages[0]
    assert message.for_template(as_objects=True)["tool_calls"][0]["function"]["arguments"] == "no JSON"
    deep = CALL | {"function": {"name": "f", "arguments": '{"a":' * 900 + "1" + "}" * 900}}
    message = chat(messages=[{"role": "assistant", "tool_calls": [deep]}]).messages[0]
    assert isinstance(message.for_template(as_objects=True)["tool_calls"][0]["function"]["arguments"], str)


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({}, ToolMode.NONE),
        ({"tools": []}, ToolMode.NONE),
        ({"tools": [TOOL]}, ToolMode.AUTO),
        ({"tools": [TOOL], "tool_choice": "none"}, ToolMode.NONE),
        ({"tools": [TOOL], "tool_choice": "required"}, ToolMode.REQUIRED),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}, ToolMode.NAMED),
    ],
)
def test_what_a_request_wants_of_tools(fields: dict[str, Any], mode: ToolMode) -> None:
    body = chat(**fields)
    assert body.tool_use().mode is mode
    grammar = body.grammar()
    if mode in {ToolMode.REQUIRED, ToolMode.NAMED}:
        assert grammar is not None
        schema = json.loads(grammar.text)
        assert schema["type"] == ("array" if mode is ToolMode.REQUIRED else "object")
    else:
        assert grammar is None


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [TOOL] * 129}, "tools"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "guided_regex": "a"}, "tools"),
        ({"tools": [with_parameters({"type": "string"})]}, "tools[0].function.parameters"),
        ({"tools": [with_parameters({"properties": 5})]}, "tools[0].function.parameters"),
    ],
)
def test_bad_tools_are_named(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        chat(**fields).grammar()
    assert refused.value.parameter == place


def test_json_or_a_call_where_both_are_possible() -> None:
    shape = {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": "null"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": shape}}
    grammar = chat(tools=[TOOL], response_format=wanted).grammar()
    assert grammar is not None
    calls, answer = json.loads(grammar.text)["anyOf"]
    assert calls["items"]["properties"]["name"] == {"const": "f"}
    assert answer == {"$ref": "#/$defs/answer"}
    assert chat(tools=[TOOL], tool_choice="none", response_format=wanted).grammar() is not None


def response(**fields: Any) -> ResponsesRequest:
    return parse(ResponsesRequest, json.dumps({"input": "Hi"} | fields).encode())


def test_a_response_is_a_chat_completion_in_other_words() -> None:
    assert response().to_chat().messages == chat().messages
    body = response(
        instructions="Be brief.",
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "b", "annotations": [], "logprobs": []}],
            },
            {"type": "function_call", "id": "fc_1", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "5"},
        ],
        tools=[{"type": "function", "name": "f", "parameters": {}, "strict": True}],
        tool_choice={"type": "function", "name": "f"},
        text={"format": {"type": "json_object"}},
        max_output_tokens=7,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        store=False,
    ).to_chat()
    roles = [message.role for message in body.messages]
    assert roles == ["system", "user", "assistant", "tool"]
    assert [call.id for call in body.messages[2].tool_calls] == ["1"]
    assert (body.wanted_tokens, body.num_logprobs) == (7, 2)
    assert body.tool_use().mode is ToolMode.NAMED


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"truncation": "auto"}, "truncation"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"top_k": 3}, "top_k"),
    ],
)
def test_bad_responses_are_named(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        response(**fields)
    assert refused.value.parameter == place
