"""Sampling fields, log probabilities and structured output by OpenAI's own client, through all services."""

from __future__ import annotations

import asyncio
import json
import math
import re
from typing import TYPE_CHECKING, Any

import openai
import pytest
from tests.stack import WAIT_S, Stack, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.redis, pytest.mark.timeout(600)]

ASK: list[Any] = [{"role": "user", "content": "Name a city, its country and its population."}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "population": {"type": "integer", "minimum": 0, "maximum": 99999999},
        "tags": {"type": "array", "items": {"enum": ["old", "new"]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["city", "population", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with serve(tmp_path_factory.mktemp("logs"), "--attention-nodes", "2") as served:
        yield served


def client_of(stack: Stack) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="none", timeout=WAIT_S, max_retries=0)


async def test_structured_output_follows_its_schema_streamed_and_not(stack: Stack) -> None:
    response_format: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
    asked: dict[str, Any] = {
        "model": "smollm2", "messages": ASK, "max_tokens": 150, "temperature": 0.7, "seed": 5,
    }  # fmt: skip
    async with client_of(stack) as client:
        whole = await client.chat.completions.create(**asked, response_format=response_format)
        text = whole.choices[0].message.content or ""
        value = json.loads(text)
        assert set(value) == set(SCHEMA["required"])
        assert isinstance(value["population"], int)
        assert set(value["tags"]) <= {"old", "new"}
        assert whole.choices[0].finish_reason == "stop"
        stream = await client.chat.completions.create(**asked, response_format=response_format, stream=True)
        parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(parts) == text
        free = await client.chat.completions.create(**asked, response_format={"type": "json_object"})
        if free.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(free.choices[0].message.content or ""), dict)
        dated = await client.chat.completions.create(**asked, extra_body={"guided_regex": r"\d{4}-\d{2}"})
        assert re.fullmatch(r"\d{4}-\d{2}", dated.choices[0].message.content or "")
        one = await client.chat.completions.create(
            **asked, extra_body={"structured_outputs": {"choice": ["Paris", "Rome"]}}
        )
        assert one.choices[0].message.content in {"Paris", "Rome"}


async def test_bad_grammars_are_refused_and_harm_nobody(stack: Stack) -> None:
    async with client_of(stack) as client:

        def ask(schema: Any, *, stream: bool = False) -> Any:
            return client.chat.completions.create(
                model="smollm2",
                messages=ASK,
                max_tokens=5,
                stream=stream,
                response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
            )

        running = asyncio.create_task(stack.generate("Gravity is", 24))
        bad = [
            {"$ref": "#"},
            {"type": "strin"},
            {"type": "object", "properties": {"a": {"$ref": "#/nope"}}},
            {"properties": {f"p{number}": {"type": "string"} for number in range(700)}},
        ]
        for schema in bad:
            for stream in (False, True):
                with pytest.raises(openai.BadRequestError) as refused:
                    await ask(schema, stream=stream)
                assert refused.value.param == "response_format"
        assert len(await running) == 24
        assert (await ask({"type": "boolean"})).choices[0].message.content in {"true", "false"}


async def test_log_probabilities_add_up_over_both_apis(stack: Stack) -> None:
    async with client_of(stack) as client:
        asked: dict[str, Any] = {"model": "smollm2", "max_tokens": 8, "temperature": 0}
        chat = await client.chat.completions.create(
            **asked, messages=ASK, logprobs=True, top_logprobs=3, stream=False
        )
        found = chat.choices[0].logprobs
        assert found is not None
        assert found.content is not None
        assert "".join(entry.token for entry in found.content) == chat.choices[0].message.content
        for entry in found.content:
            assert entry.logprob == entry.top_logprobs[0].logprob  # greedy
            assert len(entry.top_logprobs) == 3
            assert sum(math.exp(top.logprob) for top in entry.top_logprobs) <= 1.0001
        # What was generated, given as a prompt, is as likely as it was.
        first = await client.completions.create(**asked, prompt="Gravity is", logprobs=2)
        text = first.choices[0].text
        echoed = await client.completions.create(
            **(asked | {"max_tokens": 0}), prompt=f"Gravity is{text}", logprobs=2, echo=True
        )
        assert echoed.choices[0].text == f"Gravity is{text}"
        before, after = first.choices[0].logprobs, echoed.choices[0].logprobs
        assert before is not None
        assert after is not None
        assert before.token_logprobs is not None
        assert after.token_logprobs is not None
        count = len(before.token_logprobs)
        assert after.tokens is not None
        assert after.tokens[-count:] == before.tokens
        assert after.token_logprobs[-count:] == pytest.approx(before.token_logprobs, abs=2e-3)
        assert after.token_logprobs[0] is None
        assert "".join(after.tokens) == f"Gravity is{text}"
        assert echoed.usage is not None
        assert echoed.usage.completion_tokens == 0


async def test_seeds_repeat_in_company_and_bias_decides(stack: Stack) -> None:
    async with client_of(stack) as client:
        asked: dict[str, Any] = {"model": "smollm2", "prompt": "Once", "max_tokens": 16}
        asked |= {"temperature": 1.0, "top_p": 0.9, "seed": 11}
        others = [asked | {"presence_penalty": 0.1 * other, "seed": other} for other in range(6)]
        alone = (await client.completions.create(**asked)).choices[0].text
        crowd = await asyncio.gather(*(client.completions.create(**fields) for fields in [*others, asked]))
        assert crowd[-1].choices[0].text == alone
        biased = await client.completions.create(
            **asked, logit_bias={"33": 100}, extra_body={"return_token_ids": True, "ignore_eos": True}
        )
        assert set(biased.choices[0].token_ids) == {33}
