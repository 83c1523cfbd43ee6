"""The router over real HTTP and real gRPC, with a weight node that emits scripted tokens."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import pytest_asyncio
from tests.router_parts import (
    BOS_ID,
    END_ID,
    MAX_MODEL_LEN,
    Event,
    byte_level_tokenizer,
    endless,
    frames,
    router,
    saying,
    weight_node,
    write_model,
)

from kernelflume.router.schemas import (
    ChatCompletionRequest,
    CompletionRequest,
    ResponsesRequest,
    TokenizeRequest,
)
from kernelflume.rpc.v1 import wnode_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from pydantic import BaseModel
    from tests.router_parts import ScriptedWeightNode

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKENIZER = byte_level_tokenizer()
TEXT = "Hello 世界 😀!"
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), with_bos=True, generation={"temperature": 0.25})


@pytest_asyncio.fixture(loop_scope="module")
async def node(folder: Path) -> AsyncIterator[ScriptedWeightNode]:
    async with weight_node(folder, saying(*ids(TEXT))) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(folder: Path, node: ScriptedWeightNode) -> AsyncIterator[httpx.AsyncClient]:
    async with router(folder, [node]) as url, httpx.AsyncClient(base_url=url, timeout=30) as http:
        yield http


def value_of(metrics: str, start: str) -> float:
    return next(float(line.rsplit(" ", 1)[1]) for line in metrics.splitlines() if line.startswith(start))


async def stream(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[Any]:
    async with client.stream("POST", path, json=body | {"stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        return frames([line async for line in response.aiter_lines()])


async def test_chat_answers_with_text_usage_and_reason(
    client: httpx.AsyncClient, node: ScriptedWeightNode
) -> None:
    answer = (await client.post("/v1/chat/completions", json=CHAT)).json()
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": TEXT, "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] is None
    prompt = ids("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    sent = node.requests[0]
    assert list(sent.prompt_token_ids) == prompt
    assert sent.sampling.max_tokens == MAX_MODEL_LEN - len(prompt)
    assert sent.sampling.temperature == 0.25
    assert answer["usage"] == {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(ids(TEXT)) + 1,
        "total_tokens": len(prompt) + len(ids(TEXT)) + 1,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_stream_is_the_same_text_in_whole_characters(client: httpx.AsyncClient) -> None:
    body = CHAT | {"stream_options": {"include_usage": True}, "return_token_ids": True}
    *chunks, usage, done = await stream(client, "/v1/chat/completions", body)
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == len(ids(TEXT)) + 1
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[0]["prompt_token_ids"] == ids("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(deltas) == TEXT
    assert not any("\ufffd" in delta for delta in deltas)
    token_ids = [number for chunk in chunks for number in chunk["choices"][0].get("token_ids", [])]
    assert token_ids == [*ids(TEXT), END_ID]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert all(chunk["usage"] is None for chunk in chunks)


async def test_stop_string_over_token_boundaries_never_leaks_and_cancels(folder: Path) -> None:
    text_ids = ids("one two STOP")

    async def script(request: Any) -> AsyncIterator[Any]:
        async for event in saying(*text_ids).__call__(request):
            if event.token_ids:
                yield event
        async for event in endless(ids("x")[0])(request):
            yield event

    async with (
        weight_node(folder, script) as node,
        router(folder, [node]) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        body = {"prompt": "a", "stop": ["STOP", "never"], "max_tokens": 200, "return_token_ids": True}
        answer = (await client.post("/v1/completions", json=body)).json()
        choice = answer["choices"][0]
        assert choice["text"] == "one two "
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "STOP")
        assert choice["token_ids"] == text_ids
        assert answer["usage"]["completion_tokens"] == len(text_ids)
        await node.wait(lambda: len(node.cancelled) == 1)
        chunks = await stream(client, "/v1/completions", body | {"include_stop_str_in_output": True})
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == "one two STOP"


async def test_many_prompts_and_choices_are_indexed_as_openai_does(
    client: httpx.AsyncClient, node: ScriptedWeightNode
) -> None:
    async def script(request: Any) -> AsyncIterator[Any]:
        text = TOKENIZER.decode(list(request.prompt_token_ids)) + f" {request.sampling.seed}"
        async for event in saying(*ids(text))(request):
            yield event

    node.script = script
    body = {"prompt": ["a", "b"], "n": 2, "seed": 7, "add_special_tokens": False}
    answer = (await client.post("/v1/completions", json=body)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in answer["choices"]] == ["a 7", "a 8", "b 7", "b 8"]
    assert answer["usage"]["prompt_tokens"] == 2
    texts = [""] * 4
    for chunk in (await stream(client, "/v1/completions", body))[:-1]:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == ["a 7", "a 8", "b 7", "b 8"]


async def test_the_best_of_more_choices_are_given(folder: Path) -> None:
    async def as_likely_as_its_seed(request: wnode_pb2.GenerateRequest) -> AsyncIterator[Event]:
        sampling = request.sampling
        assert sampling.HasField("logprobs")
        # Seed 11 is the likeliest, then 10 and 12.
        logprob = {11: -0.5, 10: -1.0, 12: -2.0, 13: -3.0}[sampling.seed]
        told = wnode_pb2.TokenLogprobs(logprob=logprob)
        token_id = ids("abcd"[sampling.seed - 10])[0]
        yield Event(token_ids=[token_id], logprobs=[told], finish_reason="length")

    async with (
        weight_node(folder, as_likely_as_its_seed) as node,
        router(folder, [node]) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        body = {"prompt": ["x", "y"], "max_tokens": 1, "seed": 10, "n": 2, "best_of": 4}
        answer = (await client.post("/v1/completions", json=body)).json()
        assert [choice["text"] for choice in answer["choices"]] == ["b", "a", "b", "a"]
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        assert all(choice["logprobs"] is None for choice in answer["choices"])
        assert answer["usage"]["completion_tokens"] == 8
        streamed = await client.post("/v1/completions", json=body | {"stream": True})
        assert streamed.status_code == 400
        assert streamed.json()["error"]["param"] == "best_of"


async def test_prompt_of_token_ids_echo_and_bos(client: httpx.AsyncClient, node: ScriptedWeightNode) -> None:
    body = {"prompt": [5, 6, 7], "echo": True, "return_token_ids": True, "max_tokens": 3}
    choice = (await client.post("/v1/completions", json=body)).json()["choices"][0]
    assert choice["prompt_token_ids"] == [5, 6, 7]
    assert choice["text"] == TOKENIZER.decode([5, 6, 7]) + TEXT
    await client.post("/v1/completions", json={"prompt": "a"})
    assert list(node.requests[1].prompt_token_ids) == [BOS_ID, *ids("a")]
    assert node.requests[1].sampling.max_tokens == 16
    await client.post("/v1/completions", json={"prompt": "", "add_special_tokens": False})
    assert list(node.requests[2].prompt_token_ids) == [BOS_ID]


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "status"),
    [
        (MAX_MODEL_LEN - 1, 0, 200),
        (MAX_MODEL_LEN - 1, 1, 200),
        (MAX_MODEL_LEN - 1, 2, 400),
        (MAX_MODEL_LEN, 0, 400),
        (MAX_MODEL_LEN, 1, 400),
    ],
)
async def test_an_echo_with_log_probabilities_at_the_context_s_end(
    client: httpx.AsyncClient,
    node: ScriptedWeightNode,
    num_prompt_tokens: int,
    max_tokens: int,
    status: int,
) -> None:
    prompt = [5] * num_prompt_tokens
    body = {"prompt": prompt, "max_tokens": max_tokens, "echo": True, "logprobs": 1}
    answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == status
    if status == 400:
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert not node.requests
    else:
        assert list(node.requests[0].prompt_token_ids) == prompt
        assert node.requests[0].sampling.max_tokens == 1


async def test_sampling_fields_reach_the_weight_node(
    client: httpx.AsyncClient, node: ScriptedWeightNode
) -> None:
    fields = {
        "temperature": 0.5,
        "top_p": 0.75,
        "top_k": 10**12,
        "min_p": 0.125,
        "seed": -3,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.5,
        "min_tokens": 2,
        "ignore_eos": True,
        "stop_token_ids": [9],
    }
    response = await client.post(
        "/v1/chat/completions", json=CHAT | fields | {"max_tokens": 99, "max_completion_tokens": 5}
    )
    assert response.status_code == 200
    sampling = node.requests[0].sampling
    sent = {name: getattr(sampling, name) for name in fields} | {
        "stop_token_ids": list(sampling.stop_token_ids)
    }
    assert sent == fields | {"top_k": 0}
    assert sampling.max_tokens == 5


BAD_REQUESTS: list[tuple[str, dict[str, Any], int, str | None, str | None]] = [
    ("no messages", {"messages": []}, 400, None, "messages"),
    ("missing messages", {"model": "tiny"}, 400, None, "messages"),
    ("unknown model", CHAT | {"model": "other"}, 404, "model_not_found", "model"),
    ("unknown field", CHAT | {"colour": 1}, 400, None, "colour"),
    ("tools", CHAT | {"tools": [{"type": "function"}]}, 400, None, "tools[0].function"),
    ("not served", CHAT | {"store": True}, 400, None, "store"),
    ("logprobs", CHAT | {"top_logprobs": 2}, 400, None, "top_logprobs"),
    ("many logprobs", CHAT | {"logprobs": True, "top_logprobs": 21}, 400, None, "top_logprobs"),
    ("bias", CHAT | {"logit_bias": {"5": 101}}, 400, None, "logit_bias"),
    ("bias of no token", CHAT | {"logit_bias": {"99999": 1}}, 400, None, "logit_bias"),
    ("no schema", CHAT | {"response_format": {"type": "json_schema"}}, 400, None, "response_format"),
    ("bad regex", CHAT | {"guided_regex": ""}, 400, None, "guided_regex"),
    ("wrong type", CHAT | {"temperature": "hot"}, 400, None, "temperature"),
    ("out of range", CHAT | {"top_p": 0}, 400, None, "top_p"),
    ("max_tokens 0", CHAT | {"max_tokens": 0}, 400, None, "max_tokens"),
    ("too many tokens", CHAT | {"max_tokens": 10**30}, 400, "context_length_exceeded", "max_tokens"),
    (
        "long prompt",
        {"messages": [{"role": "user", "content": "ab c" * 400}]},
        400,
        "context_length_exceeded",
        None,
    ),
    (
        "endless prompt",
        {"messages": [{"role": "user", "content": "a" * 900_000}]},
        400,
        "context_length_exceeded",
        None,
    ),
    ("n", CHAT | {"n": 129}, 400, None, "n"),
    (
        "image",
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        400,
        None,
        "messages[0].content",
    ),
    ("template", {"messages": [{"role": "user", "content": "refuse me"}]}, 400, None, "messages"),
    ("template names", CHAT | {"chat_template_kwargs": {"messages": []}}, 400, None, "chat_template_kwargs"),
    ("stream options", CHAT | {"stream_options": {"include_usage": True}}, 400, None, "stream_options"),
    ("stop tokens", CHAT | {"stop_token_ids": [10**9]}, 400, None, "stop_token_ids"),
    ("seed", CHAT | {"seed": 2**63}, 400, None, "seed"),
]


@pytest.mark.parametrize(
    ("body", "status", "code", "param"), [case[1:] for case in BAD_REQUESTS], ids=[c[0] for c in BAD_REQUESTS]
)
async def test_bad_chat_requests_are_refused_by_name(
    shared_client: httpx.AsyncClient, body: dict[str, Any], status: int, code: str | None, param: str | None
) -> None:
    for extra in ({}, {"stream": True}):
        if "stream_options" in body and extra:
            continue
        response = await shared_client.post("/v1/chat/completions", json=body | extra)
        error = response.json()["error"]
        assert response.status_code == status, error
        assert (error["code"], error["param"]) == (code, param)
        assert error["message"]
        assert error["type"] == "invalid_request_error"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_client(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        weight_node(folder, saying(5)) as node,
        router(folder, [node], max_body_size=1_000_000) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):
        yield http


@pytest.mark.parametrize(
    ("prompt", "status"),
    [([5, 10**6], 400), ([-1], 400), ([], 400), ([[]], 400), ([True], 400), ("x", 200), ([[5], "b"], 200)],
)
async def test_prompts_are_checked(shared_client: httpx.AsyncClient, prompt: Any, status: int) -> None:
    response = await shared_client.post("/v1/completions", json={"prompt": prompt})
    assert response.status_code == status
    if status == 400:
        assert response.json()["error"]["param"] == "prompt"


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nowhere", b"", 404),
        ("GET", "/v1/chat/completions", b"", 405),
        ("POST", "/v1/completions/", b"{}", 404),
        ("GET", "/v1/models/other", b"", 404),
        ("POST", "/v1/completions", b"{", 400),
        ("POST", "/v1/completions", b"", 400),
        ("POST", "/v1/completions", b"[]", 400),
        ("POST", "/v1/completions", b'"text"', 400),
        ("POST", "/v1/completions", b"\xff\xfe", 400),
        ("POST", "/v1/completions", b'{"prompt":"\\ud800"}', 400),
        ("POST", "/v1/completions", b'{"prompt":"a","temperature":NaN}', 400),
        ("POST", "/v1/completions", b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
        ("POST", "/v1/completions", b'{"prompt":"a","n":' + b"9" * 10_000 + b"}", 400),
        ("POST", "/v1/completions", b'{"prompt":"' + b"a" * 5_000_000 + b'"}', 413),
    ],
)
async def test_failures_of_http_have_openais_shape(
    shared_client: httpx.AsyncClient, method: str, path: str, body: bytes, status: int
) -> None:
    response = await shared_client.request(
        method, path, content=body, headers={"content-type": "application/json"} if body else {}
    )
    assert response.status_code == (status if body or method == "GET" else 400)
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_content_type_must_be_json(shared_client: httpx.AsyncClient) -> None:
    response = await shared_client.post(
        "/v1/completions", content=b'{"prompt":"a"}', headers={"content-type": "text/plain"}
    )
    assert response.status_code == 400
    assert "text/plain" in response.json()["error"]["message"]


async def test_models_version_health_and_metrics(shared_client: httpx.AsyncClient) -> None:
    models = (await shared_client.get("/v1/models")).json()
    assert [model["id"] for model in models["data"]] == ["tiny", "also-tiny"]
    assert models["data"][0]["max_model_len"] == MAX_MODEL_LEN
    assert (await shared_client.get("/v1/models/also-tiny")).json()["id"] == "also-tiny"
    assert (await shared_client.get("/health")).status_code == 200
    assert (await shared_client.get("/version")).json()["version"]
    before = (await shared_client.get("/metrics")).text
    await shared_client.post("/v1/completions", json={"prompt": [5, 6, 7], "n": 2})
    metrics = (await shared_client.get("/metrics")).text
    for name, more in (("prompt_tokens_total", 3), ("generation_tokens_total", 4)):
        assert value_of(metrics, f"vllm:{name}{{") == value_of(before, f"vllm:{name}{{") + more
    for name, more in (("time_to_first_token_seconds_count", 2), ("inter_token_latency_seconds_count", 2)):
        assert value_of(metrics, f"vllm:{name}{{") == value_of(before, f"vllm:{name}{{") + more
    assert 'kernelflume_router_http_responses_total{path="/v1/completions",status="200"}' in metrics
    assert 'vllm:request_success_total{finished_reason="stop",model_name="tiny"}' in metrics
    assert 'kernelflume_router_weight_nodes{serving="true"} 1.0' in metrics
    assert 'vllm:num_requests_running{model_name="tiny"} 0.0' in metrics
    assert 'vllm:num_requests_waiting{model_name="tiny"} 0.0' in metrics


async def test_openapi_document_describes_the_bodies(shared_client: httpx.AsyncClient) -> None:
    document = (await shared_client.get("/openapi.json")).json()
    assert "requestBody" in document["paths"]["/v1/chat/completions"]["post"]
    assert json.dumps(document).count("chat_template_kwargs") > 0


ODD_VALUES = """[
    null, true, false, 0, 1, -1, 2147483648, 4294967296, 9223372036854775808, 18446744073709551616,
    1e300, 0.5, -0.0, 10000000000000000000000000000000000000000, "", "a", "\\u0000", "{}",
    [], [[]], [null], ["a"], ["", "b"], [1, 2], [1099511627776], [[1], "x"], [[-1]], {},
    {"a": {"b": []}}, {"self": 1}, {"type": "text"}, {"include_usage": true}, [{"role": "user"}],
    [{"role": [], "content": {}}], [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
    [{"role": "assistant", "content": null}]
]"""


async def test_nothing_that_a_client_sends_gives_500(shared_client: httpx.AsyncClient) -> None:
    chance = random.Random(0)  # noqa: S311 - the same requests every time
    odd = json.loads(ODD_VALUES)
    bases: dict[str, tuple[dict[str, Any], type[BaseModel]]] = {
        "/v1/chat/completions": (CHAT, ChatCompletionRequest),
        "/v1/completions": ({"prompt": "a"}, CompletionRequest),
        "/v1/responses": ({"input": "Hi"}, ResponsesRequest),
        "/tokenize": ({"messages": CHAT["messages"]}, TokenizeRequest),
    }
    seen: set[int] = set()
    for _ in range(800):
        path = chance.choice(list(bases))
        base, kind = bases[path]
        names = chance.sample(sorted(kind.model_fields), chance.randint(1, 2))
        body = base | {name: chance.choice(odd) for name in names}
        response = await shared_client.post(path, json=body)
        seen.add(response.status_code)
        assert response.status_code in {200, 400, 404}, body
        if response.status_code != 200:
            assert response.json()["error"]["message"]
    assert seen >= {200, 400}
    assert 'status="500"' not in (await shared_client.get("/metrics")).text
