"""From the fields that ask for structured output to one grammar. OpenAI's and vLLM's, old and new. Pure."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kernelflume.core.errors import InvalidRequestError
from kernelflume.core.grammar import Grammar, GrammarKind
from kernelflume.router.bounded import with_one_unknown
from kernelflume.router.json_schema import check_schema

if TYPE_CHECKING:
    from kernelflume.router.schemas import GenerationBody


_LOOKING = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\(\?<?[=!]", re.DOTALL)
"""What is escaped, a class of characters, or the beginning of a lookahead or lookbehind."""


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _bound(cls, data: Any) -> Any:
        return with_one_unknown(cls, data, cls.model_fields) if isinstance(data, dict) else data


class JsonSchemaFormat(_Part):
    """OpenAI's ``json_schema`` of a response format."""

    name: str | None = None
    """A label of the caller's own; not used."""
    description: str | None = None
    """For people; not used."""
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    """The schema. Without one any JSON object will do."""
    strict: bool | None = None
    """Schemas are always followed."""


class ResponseFormat(_Part):
    """OpenAI's ``response_format``."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(_Part):
    """vLLM's ``structured_outputs``: one of these."""

    json_: str | dict[str, Any] | bool | None = Field(default=None, alias="json")
    """A JSON schema, or its text."""
    regex: str | None = None
    choice: Annotated[list[str], Field(fail_fast=True)] | None = None
    grammar: str | None = None
    """Rules in GBNF."""
    json_object: bool | None = None


_NOTHING = StructuredOutputs()


def grammar_of(body: GenerationBody) -> Grammar | None:
    """Return what the text of a request must look like, or None if anything will do.

    Raises:
        InvalidRequestError: two fields ask for something, or what one asks for is malformed or too large.
    """
    wanted = _wanted(body)
    if len(wanted) > 1:
        names = " and ".join(wanted)
        raise InvalidRequestError(f"{names} cannot be combined", parameter=list(wanted)[1].split(".")[0])
    for name, (kind, value) in wanted.items():
        try:
            # A string is a text already: of a schema, of rules, of an expression.
            grammar = Grammar(kind, value if isinstance(value, str) else json.dumps(value))
            if kind is GrammarKind.REGEX:
                _check_regex(grammar.text)
            if kind is GrammarKind.JSON_SCHEMA:
                check_schema(json.loads(grammar.text))
        except InvalidRequestError as error:
            raise InvalidRequestError(str(error), parameter=name.split(".")[0]) from None
        return grammar
    return None


def _check_regex(regex: str) -> None:
    """Refuse what the grammar's compiler would leave out without a word."""
    if any(found[0].startswith("(") for found in _LOOKING.finditer(regex)):
        raise InvalidRequestError("the regex looks ahead or behind, which cannot be followed")


def grammar_field(body: GenerationBody) -> str | None:
    """Return the field that asks for a structure, or None if there is none."""
    return next((name.split(".")[0] for name in _wanted(body)), None)


def _wanted(body: GenerationBody) -> dict[str, tuple[GrammarKind, Any]]:
    """Return what each field asks for that asks for something."""
    newer = body.structured_outputs or _NOTHING
    asked: dict[str, tuple[GrammarKind, Any]] = {
        "response_format": _of_response_format(body.response_format),
        "guided_json": (GrammarKind.JSON_SCHEMA, body.guided_json),
        "guided_regex": (GrammarKind.REGEX, body.guided_regex),
        "guided_choice": (GrammarKind.CHOICE, body.guided_choice),
        "guided_grammar": (GrammarKind.EBNF, body.guided_grammar),
        "structured_outputs.json": (GrammarKind.JSON_SCHEMA, newer.json_),
        "structured_outputs.regex": (GrammarKind.REGEX, newer.regex),
        "structured_outputs.choice": (GrammarKind.CHOICE, newer.choice),
        "structured_outputs.grammar": (GrammarKind.EBNF, newer.grammar),
        "structured_outputs.json_object": (GrammarKind.JSON_OBJECT, "" if newer.json_object else None),
    }
    return {name: value for name, value in asked.items() if value[1] is not None}


def _of_response_format(wanted: ResponseFormat | None) -> tuple[GrammarKind, Any]:
    if wanted is None or wanted.type == "text":
        return GrammarKind.JSON_OBJECT, None
    if wanted.type == "json_object":
        return GrammarKind.JSON_OBJECT, ""
    if wanted.json_schema is None:
        raise InvalidRequestError(
            "response_format of type json_schema needs a json_schema", parameter="response_format"
        )
    schema = wanted.json_schema.schema_
    return GrammarKind.JSON_SCHEMA, {"type": "object"} if schema is None else schema
