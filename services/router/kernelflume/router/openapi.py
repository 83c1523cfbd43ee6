"""The OpenAPI document: the framework's own, with the bodies and answers that it does not know of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from kernelflume.router.schemas import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    ResponsesRequest,
    TokenizeRequest,
)
from kernelflume.router.schemas import answers as written

if TYPE_CHECKING:
    from fastapi import FastAPI
    from pydantic import BaseModel

_JSON = "application/json"
_EVENTS = "text/event-stream"
_REFERENCE = "#/components/schemas/{model}"
_ERRORS = {
    "400": "The request is malformed, or asks for what is not possible; `param` names the field.",
    "404": "There is no such model.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "429": "Too many requests are in progress; `Retry-After` says when to try again.",
    "503": "No weight node can serve now, or the server is shutting down.",
    "504": "A deadline passed.",
}


@dataclass(frozen=True, slots=True)
class _Operation:
    """What the framework cannot see of a route."""

    answer: type[BaseModel] | None
    """None: text."""
    body: type[BaseModel] | None = None
    streams: bool = False
    errors: tuple[str, ...] = ()


_OF_BODIES = ("400", "404", "408", "413", "503")
_OF_RUNS = (*_OF_BODIES, "429", "504")
_OPERATIONS: dict[tuple[str, str], _Operation] = {
    ("post", "/v1/chat/completions"): _Operation(
        written.ChatAnswer, ChatCompletionRequest, streams=True, errors=_OF_RUNS
    ),
    ("post", "/v1/completions"): _Operation(
        written.CompletionAnswer, CompletionRequest, streams=True, errors=_OF_RUNS
    ),
    ("post", "/v1/responses"): _Operation(
        written.ResponseAnswer, ResponsesRequest, streams=True, errors=_OF_RUNS
    ),
    ("post", "/tokenize"): _Operation(written.TokensAnswer, TokenizeRequest, errors=_OF_BODIES),
    ("post", "/detokenize"): _Operation(written.TextAnswer, DetokenizeRequest, errors=_OF_BODIES),
    ("get", "/v1/models"): _Operation(written.ModelListAnswer),
    ("get", "/v1/models/{name}"): _Operation(written.ModelAnswer, errors=("404",)),
    ("get", "/health"): _Operation(written.StatusAnswer),
    ("get", "/ready"): _Operation(written.StatusAnswer, errors=("503",)),
    ("get", "/version"): _Operation(written.VersionAnswer),
    ("get", "/metrics"): _Operation(None),
}


def build_document(app: FastAPI) -> dict[str, Any]:
    """Return the document of all routes of ``app``."""
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    for (method, path), operation in _OPERATIONS.items():
        described = document["paths"].get(path, {}).get(method)
        if described is not None:
            described |= _describe(operation)
    document["components"] = {"schemas": _schemas()}
    return document


def _describe(operation: _Operation) -> dict[str, Any]:
    if operation.answer is None:
        content: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    else:
        content = {_JSON: {"schema": _reference(operation.answer)}}
    if operation.streams:
        content[_EVENTS] = {}  # with `stream`; a schema would be one of each event
    error = {_JSON: {"schema": _reference(written.ErrorAnswer)}}
    responses = {status: {"description": _ERRORS[status], "content": error} for status in operation.errors}
    described: dict[str, Any] = {
        "responses": {
            "200": {"description": "The answer.", "content": content},
            **responses,
            "default": {"description": "Another failure.", "content": error},
        }
    }
    if operation.body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {_JSON: {"schema": _reference(operation.body)}},
        }
    return described


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(model=model.__name__)}


def _schemas() -> dict[str, Any]:
    bodies = [operation.body for operation in _OPERATIONS.values() if operation.body is not None]
    answers = [operation.answer for operation in _OPERATIONS.values() if operation.answer is not None]
    kinds: list[type[BaseModel]] = [*bodies, *answers, written.ErrorAnswer]
    _, described = models_json_schema(
        [(kind, "validation") for kind in dict.fromkeys(kinds)], ref_template=_REFERENCE
    )
    definitions: dict[str, Any] = described["$defs"]
    return definitions
