"""Which fields ask for structured output, and what each becomes."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelflume.core.errors import InvalidRequestError
from kernelflume.core.grammar import MAX_GRAMMAR_CHARS, MAX_GRAMMAR_DEPTH, Grammar, GrammarKind
from kernelflume.router.sampling import GenerationDefaults, sampling_of
from kernelflume.router.schemas import CompletionRequest, parse
from kernelflume.rpc.codec import sampling_from_proto, sampling_to_proto

if TYPE_CHECKING:
    from kernelflume.core.sampling import SamplingParameters

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def sampling(**fields: Any) -> SamplingParameters:
    body = parse(CompletionRequest, json.dumps({"prompt": "a"} | fields).encode())
    return sampling_of(body, GenerationDefaults(), max_tokens=8, vocab_size=50)


def json_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Grammar(GrammarKind.JSON_OBJECT)),
        (
            {"response_format": json_schema(SCHEMA)},
            Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)),
        ),
        ({"guided_json": SCHEMA}, Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))),
        ({"guided_json": "{}"}, Grammar(GrammarKind.JSON_SCHEMA, "{}")),
        ({"guided_regex": "a+"}, Grammar(GrammarKind.REGEX, "a+")),
        ({"guided_choice": ["a", "b"]}, Grammar(GrammarKind.CHOICE, '["a", "b"]')),
        ({"guided_grammar": "root ::= 'a'"}, Grammar(GrammarKind.EBNF, "root ::= 'a'")),
        ({"structured_outputs": {"regex": "a"}}, Grammar(GrammarKind.REGEX, "a")),
        ({"structured_outputs": {"json_object": True}}, Grammar(GrammarKind.JSON_OBJECT)),
        ({"structured_outputs": {"json_object": False}}, None),
    ],
)
def test_every_field_becomes_one_grammar_that_survives_the_wire(
    fields: dict[str, Any], grammar: Grammar | None
) -> None:
    parameters = sampling(**fields)
    assert parameters.grammar == grammar
    assert sampling_from_proto(sampling_to_proto(parameters)) == parameters


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_object", "more": 1}}, "response_format.more"),
        ({"response_format": json_schema([])}, "response_format.json_schema.schema"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[]"}, "guided_json"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"guided_regex": "a" * (MAX_GRAMMAR_CHARS + 1)}, "guided_regex"),
        ({"guided_regex": "(" * (MAX_GRAMMAR_DEPTH + 1)}, "guided_regex"),
        ({"structured_outputs": {"grammar": "("}, "allowed_token_ids": [1]}, "allowed_token_ids"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(fields: dict[str, Any], parameter: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        sampling(**fields)
    assert refused.value.parameter == parameter


def test_a_deep_schema_is_refused_before_anything_recurses() -> None:
    deep = '{"a":' * 5000 + "1" + "}" * 5000
    with pytest.raises(InvalidRequestError, match="nests 5000 deep"):
        Grammar(GrammarKind.JSON_SCHEMA, deep)
    # Brackets in a string are text.
    Grammar(GrammarKind.JSON_SCHEMA, json.dumps({"const": "{" * 5000}))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(value=JSON)
def test_any_schema_is_taken_or_refused(value: Any) -> None:
    try:
        grammar = sampling(response_format=json_schema(value)).grammar
    except InvalidRequestError:
        return
    assert grammar is not None
    assert json.loads(grammar.text) == ({"type": "object"} if value is None else value)


@given(text=st.text(alphabet='{}[]()"\\a', max_size=60), kind=st.sampled_from(GrammarKind))
def test_any_text_is_a_grammar_or_refused(text: str, kind: GrammarKind) -> None:
    with contextlib.suppress(InvalidRequestError):
        assert Grammar(kind, text).text == text


@pytest.mark.parametrize("regex", ["(?=a)b", "a(?!b)", "(?<=a)b", r"\\(?<!a)b", "[(](?=a)"])
def test_an_expression_that_looks_around_is_refused(regex: str) -> None:
    for fields in ({"guided_regex": regex}, {"structured_outputs": {"regex": regex}}):
        with pytest.raises(InvalidRequestError, match="looks ahead or behind"):
            sampling(**fields)


@pytest.mark.parametrize("regex", ["(?:a)=", "(?P<n>a)", r"\(?=", "[(?=]", r"[\](?=]", "a?=", "(?<n>a)!"])
def test_an_expression_that_only_resembles_looking_around_is_taken(regex: str) -> None:
    assert sampling(guided_regex=regex).grammar == Grammar(GrammarKind.REGEX, regex)
