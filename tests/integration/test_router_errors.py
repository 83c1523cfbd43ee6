"""Errors: OpenAI's object on each of them, and the same status streamed as unstreamed."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import pytest_asyncio
from tests.router_parts import Event, router, saying, weight_node, write_model

from kernelflume.core.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.router_parts import ScriptedWeightNode

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
BASES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": "Hi"},
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parts(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[ScriptedWeightNode, httpx.AsyncClient]]:
    folder = write_model(tmp_path_factory.mktemp("model"))
    async with weight_node(folder, saying(5)) as node:
        node.card.max_model_len = 4096
        async with (
            router(folder, [node], max_body_size=100_000) as url,
            httpx.AsyncClient(base_url=url, timeout=30) as client,
        ):
            yield node, client


def error_of(answer: httpx.Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/json"
    body: dict[str, Any] = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    found: dict[str, Any] = body["error"]
    return found


FAULTS: list[tuple[str, dict[str, Any], int, str | None, str | None]] = [
    ("*", {"model": "other"}, 404, "model_not_found", "model"),
    ("*", {"no_such_field": 1}, 400, None, "no_such_field"),
    ("*", {"temperature": "hot"}, 400, None, "temperature"),
    ("*", {"temperature": -1}, 400, None, "temperature"),
    ("*", {"model": 5}, 400, None, "model"),
    ("/v1/chat/completions", {"messages": []}, 400, None, "messages"),
    ("/v1/chat/completions", {"max_tokens": 10**6}, 400, "context_length_exceeded", "max_tokens"),
    ("/v1/chat/completions", {"logit_bias": {"1000000": 1}}, 400, None, "logit_bias"),
    ("/v1/chat/completions", {"stop_token_ids": [10**6]}, 400, None, "stop_token_ids"),
    ("/v1/chat/completions", {"response_format": {"type": "json_schema"}}, 400, None, "response_format"),
    ("/v1/chat/completions", {"guided_json": {"type": "text"}}, 400, None, "guided_json"),
    ("/v1/chat/completions", {"guided_json": {"$ref": "#"}}, 400, None, "guided_json"),
    ("/v1/chat/completions", {"guided_json": {}, "guided_regex": "a"}, 400, None, "guided_regex"),
    ("/v1/completions", {"prompt": [10**6]}, 400, None, "prompt"),
    ("/v1/completions", {"prompt": []}, 400, None, "prompt"),
    ("/v1/responses", {"max_output_tokens": 10**6}, 400, "context_length_exceeded", "max_output_tokens"),
    ("/v1/responses", {"text": {"format": {"type": "json_schema", "name": "n"}}}, 200, None, None),
    (
        "/v1/responses",
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "text"}}}},
        400,
        None,
        "text",
    ),
]
CASES = [(path, fault[1], fault[2:]) for fault in FAULTS for path in BASES if fault[0] in {path, "*"}]


@pytest.mark.parametrize(("path", "fields", "expected"), CASES)
async def test_a_fault_has_one_status_streamed_or_not(
    parts: tuple[ScriptedWeightNode, httpx.AsyncClient],
    path: str,
    fields: dict[str, Any],
    expected: tuple[int, str | None, str | None],
) -> None:
    _, client = parts
    status, code, param = expected
    for stream in (False, True):
        answer = await client.post(path, json=BASES[path] | fields | {"stream": stream})
        assert answer.status_code == status, answer.text
        if status != 200:
            error = error_of(answer)
            assert (error["code"], error["param"]) == (code, param)
            assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/chat/completions", {"response_format": FORMAT}, "response_format"),
        ("/v1/chat/completions", {"guided_json": {}}, "guided_json"),
        ("/v1/completions", {"guided_regex": "a"}, "guided_regex"),
        ("/v1/completions", {"structured_outputs": {"choice": ["a"]}}, "structured_outputs"),
        ("/v1/chat/completions", {"tools": TOOLS, "tool_choice": "required"}, "tools"),
        ("/v1/responses", {"text": {"format": {"type": "json_object"}}}, "text"),
    ],
)
async def test_a_grammar_that_a_weight_node_refuses_is_named_as_the_request_does(
    parts: tuple[ScriptedWeightNode, httpx.AsyncClient], path: str, fields: dict[str, Any], param: str
) -> None:
    node, client = parts

    async def refusing(request: Any) -> AsyncIterator[Any]:
        # As a weight node does: under the wire's name of the field.
        is_json = request.sampling.grammar.kind.startswith("json")
        if request.sampling.HasField("grammar"):
            name = "response_format" if is_json else "structured_outputs"
            raise InvalidRequestError("cannot be compiled", parameter=name)
        yield Event()

    plain = node.script
    node.script = refusing
    try:
        for stream in (False, True):
            answer = await client.post(path, json=BASES[path] | fields | {"stream": stream})
            assert answer.status_code == 400, answer.text
            assert error_of(answer)["param"] == param
    finally:
        node.script = plain


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
        ("GET", "/v1/responses", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("PUT", "/tokenize", 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"),
    ],
)
async def test_paths_and_methods(
    parts: tuple[ScriptedWeightNode, httpx.AsyncClient], method: str, path: str, status: int, code: str
) -> None:
    answer = await parts[1].request(method, path)
    assert answer.status_code == status
    assert error_of(answer)["code"] == code
    if status == 405:
        assert answer.headers["allow"] in {"GET", "POST"}


@pytest.mark.parametrize("path", [*BASES, "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"\xff", "application/json", 400),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "application/json", 400),
        (b"{}", "text/plain", 400),
        (b"{}", "", 400),
        (b" " * 100_001, "application/json", 413),
    ],
)
async def test_bodies_that_cannot_be_read(
    parts: tuple[ScriptedWeightNode, httpx.AsyncClient], path: str, content: bytes, kind: str, status: int
) -> None:
    headers = {"content-type": kind} if kind else {}
    answer = await parts[1].post(path, content=content, headers=headers)
    assert answer.status_code == status
    assert error_of(answer)["type"] == "invalid_request_error"


async def test_what_is_no_http_is_answered_in_the_same_shape(
    parts: tuple[ScriptedWeightNode, httpx.AsyncClient],
) -> None:
    url = parts[1].base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(b"NOT HTTP AT ALL\r\n\r\n")
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json" in head
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


async def test_without_a_weight_node_all_that_need_one_are_503(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = write_model(tmp_path_factory.mktemp("lonely"))
    async with (
        router(folder, [], weight_nodes=("127.0.0.1:1",)) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        bodies = BASES | {"/tokenize": {"prompt": "a"}, "/detokenize": {"tokens": [5]}}
        for path, body in bodies.items():
            for extra in ({}, {"stream": True}) if path in BASES else ({},):
                answer = await client.post(path, json=body | extra)
                assert answer.status_code == 503
                assert error_of(answer)["code"] == "unavailable"
                assert answer.headers["retry-after"] == "1"
        assert (await client.get("/v1/models")).json()["data"][0]["max_model_len"] is None
