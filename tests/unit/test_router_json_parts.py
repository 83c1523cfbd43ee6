from __future__ import annotations

import json

import pytest

from kernelflume.core.errors import InvalidRequestError
from kernelflume.router.json_parts import MAX_JSON_PARTS, has_too_many_parts
from kernelflume.router.schemas import CompletionRequest, parse

TOO_MANY = MAX_JSON_PARTS + 1


@pytest.mark.parametrize(
    "value",
    [
        [[]] * TOO_MANY,
        [{}] * TOO_MANY,
        ["a"] * TOO_MANY,
        [{'"\\': [""]}] * (TOO_MANY // 4 + 1),
        {f"{number}": 1 for number in range(TOO_MANY)},
    ],
)
def test_too_many_parts_are_refused_before_they_are_made(value: object) -> None:
    body = json.dumps({"prompt": value}).encode()
    assert has_too_many_parts(body)
    with pytest.raises(InvalidRequestError, match="more than 200000 objects, lists and texts"):
        parse(CompletionRequest, body)


@pytest.mark.parametrize(
    "value",
    [
        "a" * 1_000_000,
        list(range(TOO_MANY)),
        '{"a": ["b"]}, ' * TOO_MANY,  # within a text
        '\\"[' * TOO_MANY,
    ],
)
def test_texts_and_numbers_are_no_matter(value: object) -> None:
    assert not has_too_many_parts(json.dumps({"prompt": value}).encode())


def test_a_text_without_an_end_is_one() -> None:
    assert not has_too_many_parts(b'{"' + b'\\"[' * TOO_MANY)
    assert not has_too_many_parts(b'{"' + b"[" * TOO_MANY + b"\\")
