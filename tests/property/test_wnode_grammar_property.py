"""Any JSON schema compiles or is refused, within its process."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelflume.checkpoint.source import resolve
from kernelflume.checkpoint.vocabulary import load_vocabulary
from kernelflume.core.errors import ConfigurationError, InvalidRequestError
from kernelflume.core.grammar import Grammar, GrammarKind
from kernelflume.wnode.grammar.toolkit import GrammarToolkit

SCHEMAS = st.recursive(
    st.sampled_from(
        [
            {},
            {"type": "string"},
            {"type": "integer", "minimum": 3},
            {"type": ["null", "boolean"]},
            {"enum": [1, "a", None]},
            {"const": {"x": [1]}},
            {"$ref": "#"},
            {"$ref": "#/properties/a"},
            {"type": "string", "pattern": "^a+$"},
            {"type": "text"},
            {"type": "string", "format": "date"},
            True,
            False,
        ]
    ),
    lambda inner: st.one_of(
        st.builds(lambda a, b: {"type": "object", "properties": {"a": a, "b": b}}, inner, inner),
        st.builds(lambda a: {"type": "array", "items": a, "minItems": 1}, inner),
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
        st.builds(lambda a, b: {"allOf": [a, b]}, inner, inner),
        st.builds(lambda a: {"not": a}, inner),
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def toolkit() -> GrammarToolkit:
    try:
        checkpoint = resolve("smollm2")
    except ConfigurationError as error:
        pytest.skip(str(error))
    config = checkpoint.config
    return GrammarToolkit(
        load_vocabulary(checkpoint.path), vocab_size=config.vocab_size, eos_token_ids=config.eos_token_ids
    )


@settings(max_examples=40, deadline=None)
@given(schema=SCHEMAS)
def test_any_schema_compiles_or_is_refused(toolkit: GrammarToolkit, schema: object) -> None:
    try:
        content = toolkit.compile(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)))
    except InvalidRequestError as error:
        assert "cannot be followed" in str(error)  # noqa: PT017 - most schemas compile
    else:
        toolkit.load(content)
