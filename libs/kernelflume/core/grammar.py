"""What the text of an answer must look like: one value, checked for size before anything compiles it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

from kernelflume.core.errors import InvalidRequestError

MAX_GRAMMAR_CHARS = 64 * 1024
"""Longest text of a grammar; compiling takes more than linear time in it."""
MAX_GRAMMAR_DEPTH = 64
"""Deepest nesting of brackets in a grammar: compilers recurse."""
MAX_CHOICES = 1024


class GrammarKind(StrEnum):
    """How the text of a grammar is to be read."""

    JSON_SCHEMA = "json_schema"
    """A JSON schema: an object or a boolean."""
    JSON_OBJECT = "json_object"
    """Any JSON object; the text is empty."""
    REGEX = "regex"
    EBNF = "grammar"
    """Rules in GBNF, the first of them called ``root``."""
    CHOICE = "choice"
    """A JSON list of the texts that are allowed."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint on the text that a request generates: small enough to be compiled, not yet correct."""

    kind: GrammarKind
    text: str = ""

    def __post_init__(self) -> None:
        if len(self.text) > MAX_GRAMMAR_CHARS:
            raise InvalidRequestError(
                f"the {self.kind} has {len(self.text)} characters, more than {MAX_GRAMMAR_CHARS}",
                parameter=self.parameter,
            )
        depth = nesting(self.text, with_strings=self.kind in {GrammarKind.JSON_SCHEMA, GrammarKind.CHOICE})
        if depth > MAX_GRAMMAR_DEPTH:
            raise InvalidRequestError(
                f"the {self.kind} nests {depth} deep, more than {MAX_GRAMMAR_DEPTH}", parameter=self.parameter
            )
        match self.kind:
            case GrammarKind.JSON_SCHEMA:
                if not isinstance(self._parse(), dict | bool):
                    raise InvalidRequestError(
                        "a JSON schema must be an object or a boolean", parameter=self.parameter
                    )
            case GrammarKind.CHOICE:
                self.choices()
            case GrammarKind.JSON_OBJECT:
                if self.text:
                    raise InvalidRequestError("json_object takes no text", parameter=self.parameter)
            case GrammarKind.REGEX | GrammarKind.EBNF:
                if not self.text:
                    raise InvalidRequestError(f"the {self.kind} is empty", parameter=self.parameter)

    @property
    def parameter(self) -> str:
        """Name of the request field that errors about this grammar point to."""
        is_json = self.kind in {GrammarKind.JSON_SCHEMA, GrammarKind.JSON_OBJECT}
        return "response_format" if is_json else "structured_outputs"

    def choices(self) -> list[str]:
        """Return the allowed texts of a ``CHOICE``.

        Raises:
            InvalidRequestError: the text is no list of different, non-empty strings.
        """
        value = self._parse()
        if (
            not isinstance(value, list)
            or not all(isinstance(item, str) and item for item in value)
            or not 0 < len(value) <= MAX_CHOICES
        ):
            raise InvalidRequestError(
                f"choice must be a list of 1 to {MAX_CHOICES} strings, none of them empty",
                parameter=self.parameter,
            )
        return list(dict.fromkeys(value))

    def _parse(self) -> object:
        try:
            value: object = json.loads(self.text)
        except ValueError as error:
            raise InvalidRequestError(
                f"the {self.kind} is no JSON: {error}", parameter=self.parameter
            ) from None
        return value


def nesting(text: str, *, with_strings: bool) -> int:
    """Return how deep brackets nest in a text.

    Args:
        text: JSON, or a grammar.
        with_strings: brackets between double quotes do not count, as in JSON.
    """
    depth = deepest = 0
    quoted = escaped = False
    for char in text:
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif with_strings and char == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif char in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in ")]}":
            depth -= 1
    return deepest
