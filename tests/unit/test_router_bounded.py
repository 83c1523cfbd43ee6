"""What is refused is refused cheaply: no body makes more than a handful of errors, whatever its size."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from kernelflume.router.schemas import ChatCompletionRequest, CompletionRequest, RequestBody, ResponsesRequest
from kernelflume.router.schemas.tokens import DetokenizeRequest, TokenizeRequest

GOOD: dict[type[RequestBody], dict[str, Any]] = {
    ChatCompletionRequest: {"messages": [{"role": "user", "content": "Hi"}]},
    CompletionRequest: {"prompt": "Hi"},
    ResponsesRequest: {"input": "Hi"},
    TokenizeRequest: {"prompt": "Hi"},
    DetokenizeRequest: {"tokens": [1]},
}
MANY = 5000
HOSTILE: list[Any] = [
    ["x"] * MANY,
    [-1.5] * MANY,
    [{}] * MANY,
    [["x"] * MANY],
    [dict.fromkeys(map(str, range(MANY)), 1)],
    dict.fromkeys(map(str, range(MANY)), 1),
    {"type": "function"} | dict.fromkeys(map(str, range(MANY)), 1),
    {"type": "json_schema", "json_schema": dict.fromkeys(map(str, range(MANY)), 1)},
    {"choice": [1] * MANY},
    [{"role": "assistant", "tool_calls": [{}] * MANY}],
    [{"role": "user", "content": [{"type": "text"}] * MANY}],
    [{"role": "user", "content": "Hi"}] * MANY,
    [{"role": "x"}] * MANY,
]
MOST_ERRORS = 40


def num_errors(kind: type[RequestBody], body: dict[str, Any]) -> int:
    try:
        kind.model_validate_json(json.dumps(body))
    except ValidationError as error:
        return error.error_count()
    return 0


@pytest.mark.parametrize("kind", GOOD)
def test_no_value_of_a_field_makes_many_errors(kind: type[RequestBody]) -> None:
    for name in kind.model_fields:
        for value in HOSTILE:
            assert num_errors(kind, GOOD[kind] | {name: value}) < MOST_ERRORS, (name, str(value)[:80])


@pytest.mark.parametrize("kind", GOOD)
def test_many_fields_that_are_not_known_make_one_error(kind: type[RequestBody]) -> None:
    assert num_errors(kind, GOOD[kind]) == 0
    assert num_errors(kind, GOOD[kind] | dict.fromkeys(map(str, range(MANY)), 1)) == 1


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (ChatCompletionRequest, "messages", [{"role": "user", "content": "Hi"}] * MANY),
        (TokenizeRequest, "messages", [{"role": "user", "content": "Hi"}] * MANY),
        (ResponsesRequest, "input", [{"role": "user", "content": "Hi"}] * MANY),
        (ChatCompletionRequest, "chat_template_kwargs", dict.fromkeys(map(str, range(MANY)), 1)),
        (CompletionRequest, "metadata", dict.fromkeys(map(str, range(MANY)), "x")),
        (CompletionRequest, "logit_bias", dict.fromkeys(map(str, range(MANY)), 1)),
        (DetokenizeRequest, "tokens", [1] * (1 << 20) + [1]),
    ],
)
def test_what_would_hold_up_others_is_refused(kind: type[RequestBody], field: str, value: Any) -> None:
    good = {name: item for name, item in GOOD[kind].items() if name not in {"prompt", field}}
    body = (GOOD[kind] if kind is CompletionRequest else good) | {field: value}
    with pytest.raises(ValidationError) as refused:
        kind.model_validate_json(json.dumps(body))
    assert [error["loc"][0] for error in refused.value.errors()] == [field]
