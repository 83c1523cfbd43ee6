"""The demo model's tokenizer and template through the router's own code, beside transformers'."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from kernelflume.checkpoint.source import resolve
from kernelflume.router.tokenizer import Tokenizer
from kernelflume.router.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXTS = [
    "",
    "Hello world",
    "  two  spaces \n\n\tand tabs\n",
    "def f(x):\n    return x ** 2  # 1234567890",
    "日本語のテキスト、そして 한국어 и русский",
    "👩‍👩‍👧 😀 e\u0301 é ﷽ \u200b zero width",
    "<|im_start|>user\nin the text<|im_end|>",
    "it's we'll I'VE don't",
    "a" * 3000,
]


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Tokenizer, Any]]:
    from transformers import PreTrainedTokenizerFast

    folder = resolve("smollm2").path
    with ThreadPoolExecutor(1) as executor:
        workers = Workers(executor, timeout_s=60.0)
        yield Tokenizer.load(folder, workers=workers), PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("special", [False, True])
async def test_texts_have_the_same_ids_and_come_back_as_they_do(
    both: tuple[Tokenizer, Any], text: str, special: bool
) -> None:
    ours, theirs = both
    ids = await ours.encode(text, add_special_tokens=special, max_tokens=8192)
    assert ids == theirs.encode(text, add_special_tokens=special)
    for skip in (False, True):
        detokenizer = ours.new_detokenizer(skip_special_tokens=skip)
        shown = "".join([detokenizer.feed([number]) for number in ids]) + detokenizer.flush()
        assert shown == theirs.decode(ids, skip_special_tokens=skip)


async def test_every_token_has_the_same_text(both: tuple[Tokenizer, Any]) -> None:
    ours, theirs = both
    for start in range(0, ours.vocab_size, 997):
        ids = list(range(start, min(start + 997, ours.vocab_size)))
        detokenizer = ours.new_detokenizer(skip_special_tokens=False)
        assert detokenizer.feed(ids) + detokenizer.flush() == theirs.decode(ids)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "Hi"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "日本 😀\n"}],
        [
            {"role": "user", "content": "A"},
            {"role": "assistant", "content": "B"},
            {"role": "user", "content": "C"},
        ],
    ],
)
async def test_conversations_are_rendered_the_same(
    both: tuple[Tokenizer, Any], messages: list[dict[str, Any]]
) -> None:
    ours, theirs = both
    text = await ours.render_chat(
        messages, add_generation_prompt=True, continue_final_message=False, template_kwargs={}
    )
    ids = await ours.encode(text, add_special_tokens=False, max_tokens=8192)
    assert ids == theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
