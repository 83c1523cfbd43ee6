"""The official OpenAI client against the whole stack with the demo model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import openai
import pytest
from pydantic import BaseModel
from tests.stack import WAIT_S, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(600)]

MODEL = "smollm2"
ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tell the weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "maxLength": 20},
                    "unit": {"enum": ["celsius", "fahrenheit"]},
                },
                "required": ["city", "unit"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}},
    },
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    with (
        serve(tmp_path_factory.mktemp("logs"), "--attention-nodes", "1") as stack,
        openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0, timeout=WAIT_S) as client,
    ):
        yield client


def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    request: Any = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**request)
    chunks = list(client.chat.completions.create(**request, stream=True))
    text = whole.choices[0].message.content
    assert text
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    said = client.responses.create(
        model=MODEL, input="What is the weather in Paris?", temperature=0, max_output_tokens=24
    )
    assert said.output_text == text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "tool_choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_calls_that_are_required_are_valid(client: openai.OpenAI, stream: bool, tool_choice: Any) -> None:
    for seed in range(3):
        request: Any = {
            "model": MODEL,
            "messages": ASK,
            "tools": TOOLS,
            "tool_choice": tool_choice,
            "parallel_tool_calls": False,
            "seed": seed,
            "temperature": 1.0,
            "max_tokens": 120,
        }
        if stream:
            with client.chat.completions.stream(**request) as events:
                choice: Any = events.get_final_completion().choices[0]
        else:
            choice = client.chat.completions.create(**request).choices[0]
        assert choice.finish_reason == ("tool_calls" if tool_choice == "required" else "stop")
        (call,) = choice.message.tool_calls
        arguments = json.loads(call.function.arguments)
        if call.function.name == "get_weather":
            assert set(arguments) == {"city", "unit"}
            assert arguments["unit"] in {"celsius", "fahrenheit"}
        else:
            assert arguments == {}


class Answer(BaseModel):
    city: str
    is_capital: bool


def test_structured_output_is_parsed(client: openai.OpenAI) -> None:
    said = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Is Paris a capital? Answer in JSON."}],
        response_format=Answer,
        temperature=0,
        max_tokens=100,
    )
    assert isinstance(said.choices[0].message.parsed, Answer)
    response = client.responses.parse(
        model=MODEL, input="Is Paris a capital? Answer in JSON.", text_format=Answer, temperature=0
    )
    assert response.output_parsed == said.choices[0].message.parsed


def test_tools_reach_a_model_whose_template_knows_none(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=ASK, tools=TOOLS, temperature=0, max_tokens=80
    )
    plain = client.chat.completions.create(model=MODEL, messages=ASK, temperature=0, max_tokens=8)
    assert answer.usage is not None
    assert plain.usage is not None
    assert answer.usage.prompt_tokens > plain.usage.prompt_tokens + 100
    assert answer.choices[0].message.tool_calls or answer.choices[0].message.content


def test_log_probabilities_of_both_apis(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=ASK, temperature=0, max_tokens=5, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    content = logprobs.content or []
    assert len(content) == 5
    assert "".join(token.token for token in content) == answer.choices[0].message.content
    for token in content:
        # Greedy: the token is the likeliest.
        assert token.top_logprobs[0].token == token.token
        assert token.logprob <= 0
    echoed = client.completions.create(
        model=MODEL, prompt="The sky is", echo=True, logprobs=1, max_tokens=2, temperature=0
    )
    found = echoed.choices[0].logprobs
    assert found is not None
    assert found.token_logprobs is not None
    assert found.token_logprobs[0] is None
    assert "".join(found.tokens or []) == echoed.choices[0].text


def test_what_cannot_be_compiled_is_refused_before_a_stream_starts(client: openai.OpenAI) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(
                model=MODEL, messages=ASK, stream=stream, extra_body={"guided_regex": "(a"}
            )
        assert refused.value.param == "guided_regex"
