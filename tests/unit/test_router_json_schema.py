from __future__ import annotations

from typing import Any

import pytest

from kernelflume.router.json_schema import MAX_DEPTH, SchemaError, check_schema


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


GOOD: list[Any] = [
    True,
    {},
    {"type": ["string", "null"]},
    {"type": "object", "properties": {"type": {"type": "string"}, "$ref": {"type": "null"}}},
    {"properties": {"next": {"$ref": "#"}}},
    {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"b": {"$ref": "#/$defs/a"}}}}},
    {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "null"}}},
    {"anyOf": [{"type": "null"}, {"$ref": "#/anyOf/0"}]},
    {"items": [{"type": "string"}, True]},
    {"enum": [{"type": "no schema, a value"}], "const": {"$ref": 5}},
    nested(MAX_DEPTH - 2),
]


@pytest.mark.parametrize("schema", GOOD)
def test_schemas_that_can_be_followed(schema: Any) -> None:
    check_schema(schema)


BAD: list[tuple[Any, str]] = [
    (None, "not null"),
    ([], "not list"),
    ({"type": "text"}, "does not exist"),
    ({"type": []}, "must name a type"),
    ({"type": 5}, "does not exist"),
    ({"properties": []}, "must be an object"),
    ({"properties": {"a": 5}}, "not int"),
    ({"items": {"type": "real"}}, "does not exist"),
    ({"anyOf": []}, "not empty"),
    ({"enum": []}, "not empty"),
    ({"required": "a"}, "list of names"),
    ({"$ref": "#"}, "without end"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "without end"),
    ({"$defs": {"a": {"anyOf": [{"type": "null"}, {"allOf": [{"$ref": "#/$defs/a"}]}]}}}, "without end"),
    ({"$ref": "#/$defs/a"}, "refers to nothing"),
    ({"anyOf": [{"$ref": "#/anyOf/7"}]}, "refers to nothing"),
    ({"$ref": "https://example.com/schema"}, "same JSON schema"),
    ({"$ref": 5}, "same JSON schema"),
    ({"items": {"$ref": "#anchor"}}, "same JSON schema"),
    (nested(MAX_DEPTH), "nests deeper"),
    ({"enum": list(range(20_001))}, "more than"),
]


@pytest.mark.parametrize(("schema", "message"), BAD)
def test_schemas_that_cannot_be_followed(schema: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        check_schema(schema)


def test_references_that_fork_are_followed_once_each() -> None:
    forks = {
        f"d{number}": {"anyOf": [{"$ref": f"#/$defs/d{number + 1}"}] * 2} for number in range(MAX_DEPTH - 4)
    }
    last = f"d{MAX_DEPTH - 4}"
    check_schema({"$ref": "#/$defs/d0", "$defs": forks | {last: {"type": "null"}}})


def test_a_chain_of_references_is_bounded() -> None:
    chain: dict[str, Any] = {f"d{number}": {"$ref": f"#/$defs/d{number + 1}"} for number in range(500)}
    with pytest.raises(SchemaError, match="chain"):
        check_schema({"$ref": "#/$defs/d0", "$defs": chain | {"d500": True}})
