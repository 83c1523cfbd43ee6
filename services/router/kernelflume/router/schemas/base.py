"""What all request bodies share: strictness, and faults told in OpenAI's words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from kernelflume.core.errors import InvalidRequestError
from kernelflume.router import unsupported
from kernelflume.router.bounded import with_one_unknown
from kernelflume.router.json_parts import MAX_JSON_PARTS, has_too_many_parts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema, ErrorDetails

_ABOUT = ("default", "description", "title")
"""What a schema says that is no condition."""
_UNION_BRANCHES = frozenset({"str", "int"})


class Strict(BaseModel):
    """An object of a request: no field more than declared, no value of another type, null is unset."""

    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, frozen=True, use_attribute_docstrings=True
    )

    not_served: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Fields that are known and not served, with the values of each that ask for nothing."""

    @model_validator(mode="before")
    @classmethod
    def _drop_what_is_unset(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kept = {name: value for name, value in data.items() if value is not None}
        kept = with_one_unknown(cls, kept, cls.not_served)
        for name in cls.not_served.keys() & kept.keys():
            if not unsupported.asks_for_nothing(kept.pop(name), cls.not_served[name]):
                raise refusal(f"{name} is not supported by this server", param=name)
        return kept

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Describe the object with what is true of all of them: null is unset, and what is not served."""
        described = handler(core_schema)
        schema = handler.resolve_ref_schema(described)
        properties = schema.setdefault("properties", {})
        for name in properties.keys() - set(schema.get("required", ())):
            properties[name] = _or_null(properties[name])
        for name, neutral in cls.not_served.items():
            properties[name] = {"enum": [*neutral, None], "description": "Not served."}
        return described


def _or_null(schema: JsonSchemaValue) -> JsonSchemaValue:
    about: JsonSchemaValue = {key: schema[key] for key in _ABOUT if key in schema}
    rest = {key: value for key, value in schema.items() if key not in about}
    branches = rest["anyOf"] if set(rest) == {"anyOf"} else [rest]
    if {"type": "null"} in branches or not rest:
        return schema
    return {"anyOf": [*branches, {"type": "null"}], **about}


def at_most(num_fields: int) -> BeforeValidator:
    """Return what refuses an object of more fields, before they are looked at.

    One that is bad costs an error of its own, and the making of errors holds up the whole process. Lists
    have ``fail_fast`` and ``max_length`` for that.
    """

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > num_fields:
            raise refusal(f"at most {num_fields} fields are allowed here, not {len(value)}")
        return value

    return BeforeValidator(check)


class RequestBody(Strict):
    """The body of a request."""

    model: str | None = None
    """Name of the model; default: the first one served."""


B = TypeVar("B", bound=RequestBody)


def parse(kind: type[B], body: bytes) -> B:
    """Read a request body.

    Raises:
        InvalidRequestError: it is no JSON, of far too many parts, or a field is bad; the first such is named.
    """
    if has_too_many_parts(body):
        raise InvalidRequestError(f"The body has more than {MAX_JSON_PARTS} objects, lists and texts.")
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _explain(error.errors(include_url=False, include_input=False)[0]) from None


def refusal(message: str, *, param: str | None = None) -> PydanticCustomError:
    """Return what a validator raises to refuse a value.

    Args:
        message: said to the client.
        param: the field within the object that is validated; None: what is validated itself.
    """
    # The text goes through a template, in which braces of the caller's would be read as names.
    return PydanticCustomError("refused", "{reason}", {"reason": message, "param": param or ""})


def _explain(fault: ErrorDetails) -> InvalidRequestError:
    place = _name_place(fault["loc"])
    match fault["type"]:
        case "json_invalid":
            return InvalidRequestError(f"The body cannot be read: {fault['msg']}")
        case "extra_forbidden":
            return InvalidRequestError(f"Unrecognized request argument supplied: {place}", parameter=place)
        case "missing":
            return InvalidRequestError(f"Missing required parameter: {place}", parameter=place)
        case "refused":
            inner = fault["ctx"]["param"]
            full = ".".join(filter(None, [place, inner]))
            return InvalidRequestError(fault["msg"], parameter=full or None)
    return InvalidRequestError(f"{place}: {fault['msg']}" if place else fault["msg"], parameter=place)


def _name_place(location: tuple[int | str, ...]) -> str | None:
    """Return a place as OpenAI writes it (messages[0].content), without the names of union branches."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.isidentifier() and part not in _UNION_BRANCHES:
            text += f".{part}" if text else part
    return text or None
