"""/tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest
import pytest_asyncio
from tests.router_parts import (
    BOS_ID,
    MAX_MODEL_LEN,
    byte_level_tokenizer,
    router,
    saying,
    weight_node,
    write_model,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKENIZER = byte_level_tokenizer()
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    folder = write_model(tmp_path_factory.mktemp("model"), with_bos=True)
    async with (
        weight_node(folder, saying(5)) as node,
        router(folder, [node]) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):
        yield http


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


async def test_texts_and_conversations_have_the_tokens_that_a_request_would_have(
    client: httpx.AsyncClient,
) -> None:
    answer = (await client.post("/tokenize", json={"model": "tiny", "prompt": "Héllo"})).json()
    tokens = [BOS_ID, *ids("Héllo")]
    assert answer == {
        "count": len(tokens),
        "max_model_len": MAX_MODEL_LEN,
        "tokens": tokens,
        "token_strs": None,
    }
    body = {"prompt": "Hi", "add_special_tokens": False, "return_token_strs": True}
    named = (await client.post("/tokenize", json=body)).json()
    assert named["tokens"] == ids("Hi")
    assert named["token_strs"] == [TOKENIZER.id_to_token(number) for number in ids("Hi")]
    assert (await client.post("/tokenize", json={"prompt": "", "add_special_tokens": False})).json()[
        "count"
    ] == 0
    chat = (await client.post("/tokenize", json={"messages": MESSAGES})).json()
    assert chat["tokens"] == ids("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    open_end = {"messages": MESSAGES, "add_generation_prompt": False}
    assert (await client.post("/tokenize", json=open_end)).json()["tokens"] == ids(
        "<|im_start|>user\nHi<|im_end|>\n"
    )


async def test_tokens_have_the_text_that_they_came_from(client: httpx.AsyncClient) -> None:
    for text in ("Hello 世界 😀", "<|im_start|>x", ""):
        answer = await client.post("/detokenize", json={"model": "tiny", "tokens": ids(text)})
        assert answer.json() == {"prompt": text}


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, 400, "add_generation_prompt"),
        ("/tokenize", {"prompt": "a", "chat_template": "x"}, 400, "chat_template"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model"),
        ("/tokenize", {"prompt": "a" * 900_000}, 400, None),
        ("/detokenize", {"tokens": [10**9]}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/detokenize", {"tokens": "a"}, 400, "tokens"),
        ("/detokenize", {}, 400, "tokens"),
    ],
)
async def test_bad_requests_are_refused_by_name(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    answer = await client.post(path, json=body)
    assert answer.status_code == status
    assert answer.json()["error"]["param"] == param
