"""The official OpenAI client against the router."""

from __future__ import annotations

from typing import TYPE_CHECKING

import openai
import pytest
from tests.router_parts import byte_level_tokenizer, endless, router, saying, weight_node, write_model

from kernelflume.rpc.v1 import wnode_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from openai.types.chat import ChatCompletionMessageParam

TEXT = "Hello 世界 😀!"
IDS = byte_level_tokenizer().encode(TEXT, add_special_tokens=False).ids
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def new_client(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=30)


async def test_chat_and_completions_whole_and_streamed(folder: Path) -> None:
    async with (
        weight_node(folder, saying(*IDS)) as node,
        router(folder, [node]) as url,
        new_client(url) as client,
    ):
        assert [model.id async for model in client.models.list()] == ["tiny", "also-tiny"]
        assert (await client.models.retrieve("tiny")).id == "tiny"

        answer = await client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=0, n=2)
        assert [choice.message.content for choice in answer.choices] == [TEXT, TEXT]
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 2 * (len(IDS) + 1)

        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model="tiny", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
            )
        ]
        deltas = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
        assert "".join(deltas) == TEXT
        assert chunks[-2].choices[0].finish_reason == "stop"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == len(IDS) + 1

        completion = await client.completions.create(model="tiny", prompt=["a", "b"], max_tokens=5)
        assert [choice.text for choice in completion.choices] == [TEXT, TEXT]
        stream = await client.completions.create(model="tiny", prompt=[5, 6], stream=True)
        assert "".join([choice.text async for chunk in stream for choice in chunk.choices]) == TEXT


async def test_errors_are_the_clients_own_classes(folder: Path) -> None:
    async with (
        weight_node(folder, saying(*IDS)) as node,
        router(folder, [node], max_concurrent_requests=1, max_waiting_requests=0) as url,
        new_client(url) as client,
    ):
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="other", messages=MESSAGES)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as too_long:
            await client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=10**6)
        assert too_long.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="tiny", messages=MESSAGES, store=True)
        assert refused.value.param == "store"
        node.script = endless(IDS[0])
        async with await client.completions.create(
            model="tiny", prompt="a", stream=True, max_tokens=99
        ) as stream:
            await anext(stream)
            with pytest.raises(openai.RateLimitError):
                await client.completions.create(model="tiny", prompt="a")
        await node.wait(lambda: len(node.cancelled) == 1)


async def test_log_probabilities_whole_and_streamed_with_an_echo(folder: Path) -> None:
    def told(value: float) -> wnode_pb2.TokenLogprobs:
        return wnode_pb2.TokenLogprobs(logprob=value, top_token_ids=[IDS[0]], top_logprobs=[-0.5])

    async def script(request: wnode_pb2.GenerateRequest) -> AsyncIterator[wnode_pb2.GenerateEvent]:
        if request.sampling.HasField("prompt_logprobs"):
            for number in range(1, len(request.prompt_token_ids)):
                yield wnode_pb2.GenerateEvent(prompt_logprobs=[told(-10.0 - number)])
        for number, token_id in enumerate(IDS):
            yield wnode_pb2.GenerateEvent(token_ids=[token_id], logprobs=[told(-1.0 - number)])
        yield wnode_pb2.GenerateEvent(finish_reason="stop", stop_token_id=2)

    own = [-1.0 - number for number in range(len(IDS))]
    async with (
        weight_node(folder, script) as node,
        router(folder, [node]) as url,
        new_client(url) as client,
    ):
        answer = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=1
        )
        whole = answer.choices[0].logprobs
        assert whole is not None
        assert whole.content is not None
        assert [entry.logprob for entry in whole.content] == own
        assert b"".join(bytes(entry.bytes or []) for entry in whole.content).decode() == TEXT
        assert node.requests[-1].sampling.logprobs == 1
        stream = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=1, stream=True
        )
        streamed = [
            entry.logprob
            async for chunk in stream
            for choice in chunk.choices
            if choice.logprobs is not None
            for entry in choice.logprobs.content or []
        ]
        assert streamed == own

        prompt = IDS[:3]
        echoed = await client.completions.create(model="tiny", prompt=prompt, logprobs=1, echo=True)
        parts = await client.completions.create(
            model="tiny", prompt=prompt, logprobs=1, echo=True, stream=True
        )
        numbers = [
            value
            async for part in parts
            for choice in part.choices
            if choice.logprobs is not None
            for value in choice.logprobs.token_logprobs or []
        ]
        assert echoed.choices[0].logprobs is not None
        assert echoed.choices[0].logprobs.token_logprobs == [None, -11.0, -12.0, *own] == numbers
        only = await client.completions.create(
            model="tiny", prompt=prompt, logprobs=1, echo=True, max_tokens=0
        )
        assert only.choices[0].logprobs is not None
        assert only.choices[0].logprobs.token_logprobs == [None, -11.0, -12.0]
        assert only.choices[0].finish_reason == "length"


async def test_a_stream_has_its_usage_as_often_as_asked(folder: Path) -> None:
    async with (
        weight_node(folder, saying(*IDS)) as node,
        router(folder, [node]) as url,
        new_client(url) as client,
    ):
        options = {"include_usage": True, "continuous_usage_stats": True}
        for n in (1, 2):
            chunks = [
                chunk
                async for chunk in await client.chat.completions.create(
                    model="tiny", messages=MESSAGES, stream=True, n=n, extra_body={"stream_options": options}
                )
            ]
            counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
            assert len(counts) == len(chunks)
            assert counts == sorted(counts)
            assert counts[-1] == n * (len(IDS) + 1)
            assert not chunks[-1].choices
