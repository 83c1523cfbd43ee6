"""/v1/responses through the official OpenAI client, with a scripted weight node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openai
import pytest
import pytest_asyncio
from pydantic import BaseModel
from tests.router_parts import Event, byte_level_tokenizer, router, saying, weight_node, write_model

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from openai.types.responses import FunctionToolParam
    from tests.router_parts import ScriptedWeightNode

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKENIZER = byte_level_tokenizer()
TEXT = "Hello 世界 😀!"
ARGUMENTS = '{"city": "Köln"}'
CALL = f'<tool_call>{{"name": "get_weather", "arguments": {ARGUMENTS}}}</tool_call>'
TOOL: FunctionToolParam = {
    "type": "function",
    "name": "get_weather",
    "description": "Tell the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parts(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[ScriptedWeightNode, openai.AsyncOpenAI]]:
    folder = write_model(tmp_path_factory.mktemp("model"))
    async with weight_node(folder, saying(*ids(TEXT))) as node:
        node.card.max_model_len = 4096
        async with (
            router(folder, [node]) as url,
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=30) as client,
        ):
            yield node, client


async def test_a_text_is_answered_with_a_message_and_usage(
    parts: tuple[ScriptedWeightNode, openai.AsyncOpenAI],
) -> None:
    node, client = parts
    node.script = saying(*ids(TEXT))
    answer = await client.responses.create(
        model="tiny", input="Hi", instructions="Be brief.", temperature=0, metadata={"a": "b"}
    )
    assert answer.output_text == TEXT
    assert (answer.status, answer.store, answer.metadata) == ("completed", False, {"a": "b"})  # type: ignore[attr-defined]
    sent = node.requests[-1]
    prompt = TOKENIZER.decode(list(sent.prompt_token_ids), skip_special_tokens=False)
    assert prompt == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert answer.usage is not None
    assert answer.usage.input_tokens == len(sent.prompt_token_ids)
    assert answer.usage.output_tokens == len(ids(TEXT)) + 1
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens


async def test_a_stream_builds_the_answer_up_in_openais_order(
    parts: tuple[ScriptedWeightNode, openai.AsyncOpenAI],
) -> None:
    node, client = parts
    node.script = saying(*ids(TEXT))
    async with client.responses.stream(model="tiny", input="Hi") as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    kinds = [event.type for event in events]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == TEXT
    assert not any("\ufffd" in delta for delta in deltas)
    assert list(dict.fromkeys(kinds)) == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    numbers = [event.sequence_number for event in events]
    assert numbers == list(range(len(events)))
    assert final.output_text == TEXT
    assert final.usage is not None
    assert final.usage.output_tokens == len(ids(TEXT)) + 1


async def test_calls_are_items_that_can_be_sent_back(
    parts: tuple[ScriptedWeightNode, openai.AsyncOpenAI],
) -> None:
    node, client = parts
    node.script = saying(*ids(f"Let me see. {CALL}"))
    answer = await client.responses.create(model="tiny", input="Weather?", tools=[TOOL])
    assert [item.type for item in answer.output] == ["message", "function_call"]
    call = answer.output[1]
    assert call.type == "function_call"
    assert (call.name, call.arguments) == ("get_weather", ARGUMENTS)

    async with client.responses.stream(model="tiny", input="Weather?", tools=[TOOL]) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert len(pieces) > 1
    assert "".join(pieces) == ARGUMENTS
    assert [item.type for item in final.output] == ["message", "function_call"]

    node.script = saying(*ids("Rain."))
    history: Any = [
        {"role": "user", "content": "Weather?"},
        *[item.model_dump() for item in answer.output],
        {"type": "function_call_output", "call_id": call.call_id, "output": "rain"},
    ]
    after = await client.responses.create(model="tiny", input=history, tools=[TOOL])
    assert after.output_text == "Rain."
    prompt = TOKENIZER.decode(list(node.requests[-1].prompt_token_ids), skip_special_tokens=False)
    assert "Let me see. \n<tool_call>" in prompt
    assert "<tool_response>\nrain\n</tool_response>" in prompt


class Weather(BaseModel):
    city: str


async def test_structured_text_is_guided_and_parsed(
    parts: tuple[ScriptedWeightNode, openai.AsyncOpenAI],
) -> None:
    node, client = parts
    node.script = saying(*ids(ARGUMENTS))
    answer = await client.responses.parse(model="tiny", input="Weather?", text_format=Weather)
    assert answer.output_parsed == Weather(city="Köln")
    assert node.requests[-1].sampling.grammar.kind == "json_schema"


async def test_a_cut_answer_is_incomplete_whole_and_streamed(
    parts: tuple[ScriptedWeightNode, openai.AsyncOpenAI],
) -> None:
    node, client = parts
    node.script = saying(*ids("Hel"), reason="length", stop_token_id=None)
    answer = await client.responses.create(model="tiny", input="Hi", max_output_tokens=3)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert node.requests[-1].sampling.max_tokens == 3
    events = [event async for event in await client.responses.create(model="tiny", input="Hi", stream=True)]
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output[0].status == "incomplete"  # type: ignore[union-attr]


async def test_a_failure_in_mid_stream_is_told_and_ends_it(
    parts: tuple[ScriptedWeightNode, openai.AsyncOpenAI],
) -> None:
    node, client = parts

    async def failing(request: Any) -> AsyncIterator[Any]:
        yield Event(token_ids=ids("Hel")[:1])
        raise RuntimeError

    node.script = failing
    events = [event async for event in await client.responses.create(model="tiny", input="Hi", stream=True)]
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]


async def test_what_needs_a_store_is_refused(parts: tuple[ScriptedWeightNode, openai.AsyncOpenAI]) -> None:
    _, client = parts
    for fields in ({"store": True}, {"previous_response_id": "resp_1"}, {"background": True}):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model="tiny", input="Hi", **fields)
        assert refused.value.param == next(iter(fields))
    with pytest.raises(openai.BadRequestError) as too_long:
        await client.responses.create(model="tiny", input="Hi", max_output_tokens=10**6)
    assert (too_long.value.code, too_long.value.param) == ("context_length_exceeded", "max_output_tokens")
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model="other", input="Hi")
