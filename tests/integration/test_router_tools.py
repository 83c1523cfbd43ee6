"""Tools through the official OpenAI client, with a weight node that writes what a model would."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest
import pytest_asyncio
from pydantic import BaseModel
from tests.router_parts import TEMPLATE, byte_level_tokenizer, router, saying, weight_node, write_model

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
    from tests.router_parts import ScriptedWeightNode

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKENIZER = byte_level_tokenizer()
KNOWING = (
    "{% if tools %}{% for tool in tools %}[{{ tool.function.name }}]{% endfor %}{% endif %}"
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}({{ call.function.arguments.city }}){% endfor %}{% endfor %}"
)
TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Tell the weather.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}},
    },
]
ARGUMENTS = '{"city": "Köln"}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
ASK: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Weather in Köln?"}]


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


def prompt_of(node: ScriptedWeightNode) -> str:
    return str(TOKENIZER.decode(list(node.requests[-1].prompt_token_ids), skip_special_tokens=False))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[ScriptedWeightNode, str]]:
    folder = write_model(tmp_path_factory.mktemp("plain"), chat_template=TEMPLATE)
    async with running(folder) as parts:
        yield parts


def running(folder: Path) -> Any:
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def run() -> AsyncIterator[tuple[ScriptedWeightNode, str]]:
        async with weight_node(folder, saying(5)) as node:
            node.card.max_model_len = 4096
            async with router(folder, [node]) as url:
                yield node, url

    return run()


def new_client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=30)


async def test_calls_come_whole_and_streamed(plain: tuple[ScriptedWeightNode, str]) -> None:
    node, url = plain
    node.script = saying(*ids(f"Let me see.\n{CALL}\n{OTHER}"))
    async with new_client(url) as client:
        answer = await client.chat.completions.create(model="tiny", messages=ASK, tools=TOOLS)
        choice = answer.choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "Let me see.\n"
        calls = choice.message.tool_calls or []
        assert [(call.type, call.id[:5]) for call in calls] == [("function", "call_")] * 2
        functions = [
            (call.function.name, call.function.arguments) for call in calls if call.type == "function"
        ]
        assert functions == [("get_weather", ARGUMENTS), ("get_time", "{}")]

        async with client.chat.completions.stream(model="tiny", messages=ASK, tools=TOOLS) as stream:
            arguments = [
                event.arguments_delta
                async for event in stream
                if event.type == "tool_calls.function.arguments.delta"
            ]
            final = await stream.get_final_completion()
        assert len(arguments) > 2
        streamed = final.choices[0]
        assert streamed.finish_reason == "tool_calls"
        assert streamed.message.content == "Let me see.\n"
        assert [
            (call.function.name, call.function.arguments) for call in streamed.message.tool_calls or []
        ] == functions
    async with httpx.AsyncClient(base_url=url) as http:
        metrics = (await http.get("/metrics")).text
    # As vLLM counts them: the text was stopped, whatever it says.
    assert 'finished_reason="stop"' in metrics
    assert "tool_calls" not in metrics


async def test_a_template_without_tools_is_given_them_as_text(plain: tuple[ScriptedWeightNode, str]) -> None:
    node, url = plain
    node.script = saying(*ids(CALL))
    async with new_client(url) as client:
        answer = await client.chat.completions.create(model="tiny", messages=ASK, tools=TOOLS)
        prompt = prompt_of(node)
        assert prompt.startswith("<|im_start|>system\nYou can call functions.")
        assert '"name": "get_weather", "description": "Tell the weather."' in prompt
        message = answer.choices[0].message
        assert message.content is None
        calls = message.tool_calls or []
        followed = [
            *ASK,
            message.model_dump(),
            {"role": "tool", "tool_call_id": calls[0].id, "content": "Rain"},
        ]
        node.script = saying(*ids("It rains."))
        after = await client.chat.completions.create(model="tiny", messages=followed, tools=TOOLS)  # type: ignore[arg-type]
        assert after.choices[0].message.content == "It rains."
        assert after.choices[0].finish_reason == "stop"
        assert f"<|im_start|>assistant\n{CALL}<|im_end|>" in prompt_of(node)
        assert "<|im_start|>user\n<tool_response>\nRain\n</tool_response><|im_end|>" in prompt_of(node)


async def test_a_template_with_tools_shows_them_itself(tmp_path: Path) -> None:
    async with (
        running(write_model(tmp_path, chat_template=KNOWING)) as (node, url),
        new_client(url) as client,
    ):
        call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": ARGUMENTS}}
        messages: Any = [
            *ASK,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "Rain"},
        ]
        await client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS)
        assert prompt_of(node) == "[get_weather][get_time]<user>Weather in Köln?<assistant>(Köln)<tool>Rain"
        await client.chat.completions.create(model="tiny", messages=ASK, tools=TOOLS, tool_choice="none")
        assert prompt_of(node) == "<user>Weather in Köln?"


async def test_required_calls_are_guided(plain: tuple[ScriptedWeightNode, str]) -> None:
    node, url = plain
    listed = f'[{{"name": "get_weather", "arguments": {ARGUMENTS}}}]'
    async with new_client(url) as client:
        for stream in (False, True):
            node.script = saying(*ids(listed))
            required = await first_call(client, stream=stream, tool_choice="required")
            assert required == ("tool_calls", "get_weather", ARGUMENTS)
            grammar = node.requests[-1].sampling.grammar
            assert grammar.kind == "json_schema"
            schema = json.loads(grammar.text)
            names = [item["properties"]["name"]["const"] for item in schema["items"]["anyOf"]]
            assert names == ["get_weather", "get_time"]

            node.script = saying(*ids(ARGUMENTS))
            named = {"type": "function", "function": {"name": "get_weather"}}
            assert await first_call(client, stream=stream, tool_choice=named) == (
                "stop",
                "get_weather",
                ARGUMENTS,
            )
            grammar = node.requests[-1].sampling.grammar
            assert json.loads(grammar.text) == TOOLS[0]["function"]["parameters"]


async def first_call(client: openai.AsyncOpenAI, *, stream: bool, tool_choice: Any) -> tuple[str, str, str]:
    """Return the reason, and the name and arguments of the only call."""
    request: Any = {"model": "tiny", "messages": ASK, "tools": TOOLS, "tool_choice": tool_choice}
    if not stream:
        answer = await client.chat.completions.create(**request)
    else:
        async with client.chat.completions.stream(**request) as events:
            answer = await events.get_final_completion()
    choice = answer.choices[0]
    assert not choice.message.content
    (call,) = choice.message.tool_calls or []
    assert call.type == "function"
    return choice.finish_reason, call.function.name, call.function.arguments


async def test_one_call_ends_an_answer_where_they_must_not_be_parallel(
    plain: tuple[ScriptedWeightNode, str],
) -> None:
    node, url = plain
    node.script = saying(*ids(f"{CALL}\n{OTHER}"))
    num_cancelled = len(node.cancelled)
    async with new_client(url) as client:
        answer = await client.chat.completions.create(
            model="tiny", messages=ASK, tools=TOOLS, parallel_tool_calls=False
        )
    assert len(answer.choices[0].message.tool_calls or []) == 1
    assert answer.choices[0].finish_reason == "tool_calls"
    assert len(node.cancelled) >= num_cancelled


async def test_without_a_call_the_answer_is_text(plain: tuple[ScriptedWeightNode, str]) -> None:
    node, url = plain
    async with new_client(url) as client:
        for text in ("No need.", '<tool_call>{"name": "unknown"}</tool_call>', "<tool_ca", '{"a": 1}'):
            node.script = saying(*ids(text))
            answer = await client.chat.completions.create(model="tiny", messages=ASK, tools=TOOLS)
            assert answer.choices[0].message.content == text
            assert answer.choices[0].message.tool_calls is None
            assert answer.choices[0].finish_reason == "stop"


class GetWeather(BaseModel):
    """Tell the weather."""

    city: str


async def test_the_clients_parse_helpers(plain: tuple[ScriptedWeightNode, str]) -> None:
    node, url = plain
    call = f'<tool_call>{{"name": "GetWeather", "arguments": {ARGUMENTS}}}</tool_call>'
    async with new_client(url) as client:
        node.script = saying(*ids(call))
        asked = await client.chat.completions.parse(
            model="tiny", messages=ASK, tools=[openai.pydantic_function_tool(GetWeather)]
        )
        calls = asked.choices[0].message.tool_calls or []
        assert calls[0].function.parsed_arguments == GetWeather(city="Köln")

        node.script = saying(*ids(ARGUMENTS))
        said = await client.chat.completions.parse(model="tiny", messages=ASK, response_format=GetWeather)
        assert said.choices[0].message.parsed == GetWeather(city="Köln")
        schema = json.loads(node.requests[-1].sampling.grammar.text)
        assert schema["required"] == ["city"]


async def test_a_setting_chooses_the_format(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    async with weight_node(folder, saying(*ids('{"name": "get_time", "parameters": {}}'))) as node:
        node.card.max_model_len = 4096
        async with router(folder, [node], tool_call_parser="llama3") as url, new_client(url) as client:
            answer = await client.chat.completions.create(model="tiny", messages=ASK, tools=TOOLS)
            (call,) = answer.choices[0].message.tool_calls or []
            assert call.type == "function"
            assert (call.function.name, call.function.arguments) == ("get_time", "{}")
