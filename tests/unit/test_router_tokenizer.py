from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from tests.router_parts import BOS_ID, TEMPLATE, byte_level_tokenizer, write_model
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, normalizers
from tokenizers.models import BPE

from kernelflume.core.errors import ConfigurationError, InvalidRequestError
from kernelflume.router.errors import ContextLengthError
from kernelflume.router.tokenizer import LONG_TEXT_CHARS, Tokenizer
from kernelflume.router.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

USER = [{"role": "user", "content": "Hi "}]


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with ThreadPoolExecutor(1) as pool:
        yield Workers(pool, timeout_s=60.0)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory, workers: Workers) -> Tokenizer:
    folder = write_model(tmp_path_factory.mktemp("model"), with_bos=True)
    return Tokenizer.load(folder, workers=workers)


def render(tokenizer: Tokenizer, messages: list[dict[str, Any]], **options: Any) -> Any:
    defaults: dict[str, Any] = {
        "add_generation_prompt": True,
        "continue_final_message": False,
        "template_kwargs": {},
    }
    return tokenizer.render_chat(messages, **(defaults | options))


async def test_a_long_text_gives_the_same_ids_as_a_short_one_would(tokenizer: Tokenizer) -> None:
    text = "Hello 世界 " * LONG_TEXT_CHARS
    plain = byte_level_tokenizer().encode(text, add_special_tokens=False).ids
    assert await tokenizer.encode(text, add_special_tokens=False, max_tokens=10**6) == plain
    assert await tokenizer.encode(text, add_special_tokens=True, max_tokens=10**6) == [BOS_ID, *plain]


async def test_a_text_that_cannot_fit_is_refused_unread(tokenizer: Tokenizer) -> None:
    with pytest.raises(ContextLengthError):
        await tokenizer.encode("a" * 100_000, add_special_tokens=False, max_tokens=10)


async def test_a_text_that_cannot_fit_is_refused_by_its_beginning(workers: Workers) -> None:
    plain = byte_level_tokenizer()
    plain.normalizer = normalizers.NFC()  # so that its characters alone tell nothing
    tokenizer = Tokenizer(plain, workers=workers)
    text = "1" * 400_000
    for owner in (None, ""):
        with pytest.raises(ContextLengthError, match="the first 131072 of 400000 characters"):
            await tokenizer.encode(text, add_special_tokens=False, max_tokens=1_000, owner=owner)
    with pytest.raises(ContextLengthError, match="the first 262144 of 1200000 characters"):
        await tokenizer.encode(3 * text, add_special_tokens=False, max_tokens=200_000)


async def test_no_more_than_a_piece_is_read_of_a_text_that_cannot_fit(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A beginning of few tokens does not let an end of many pass, nor does a cut cost a text its place."""
    fast = FastTokenizer(BPE({"a": 0, "aa": 1, "aaaa": 2, "b": 3}, [("a", "a"), ("aa", "aa")]))
    fast.normalizer = normalizers.NFC()
    tokenizer = Tokenizer(fast, workers=workers)
    whole: list[int] = []
    encode = tokenizer._encode

    def noting(text: str, *, add_special_tokens: bool) -> list[int]:
        whole.append(len(text))
        return encode(text, add_special_tokens=add_special_tokens)

    monkeypatch.setattr(tokenizer, "_encode", noting)
    text = "a" * 1_000_000 + "b" * 200_000
    with pytest.raises(ContextLengthError):
        await tokenizer.encode(text, add_special_tokens=False, max_tokens=130_000)
    assert not whole
    fits = "a" + "aaaa" * 250_000  # of which each cut leaves an odd number
    assert len(await tokenizer.encode(fits, add_special_tokens=False, max_tokens=250_001)) == 250_001
    assert whole == [len(fits)]


async def test_a_final_message_is_continued(tokenizer: Tokenizer) -> None:
    messages = [*USER, {"role": "assistant", "content": "It is"}]
    text = await render(tokenizer, messages, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("<|im_start|>assistant\nIt is")


async def test_template_variables_reach_the_template(tokenizer: Tokenizer) -> None:
    text = await render(tokenizer, USER, template_kwargs={"mood": "merry"})
    assert "mood: merry" in text


async def test_a_template_that_refuses_is_the_requests_fault(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="refused as asked"):
        await render(tokenizer, [{"role": "user", "content": "refuse me"}])


async def test_without_a_template_there_is_no_chat(workers: Workers) -> None:
    with pytest.raises(InvalidRequestError, match="no chat template"):
        await render(Tokenizer(byte_level_tokenizer(), workers=workers), USER)


@pytest.mark.parametrize("form", ["text", "named", "file"])
async def test_a_template_is_found_wherever_models_keep_it(
    tmp_path: Path, workers: Workers, form: str
) -> None:
    write_model(tmp_path)
    forms = {
        "text": TEMPLATE,
        "named": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": TEMPLATE}],
        "file": "not this one",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": forms[form]}))
    if form == "file":
        (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    text = await render(Tokenizer.load(tmp_path, workers=workers), USER)
    assert text == "<|im_start|>user\nHi <|im_end|>\n<|im_start|>assistant\n"


def test_a_folder_without_a_tokenizer_stops_the_start(tmp_path: Path, workers: Workers) -> None:
    with pytest.raises(ConfigurationError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path, workers=workers)


def test_the_router_never_loads_torch() -> None:
    code = "import sys, kernelflume.router.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_bytes_of_tokens_are_those_of_their_texts(tokenizer: Tokenizer) -> None:
    ids = tokenizer._tokenizer.encode("Grüße, 世界 😀", add_special_tokens=False).ids
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == "Grüße, 世界 😀"
    assert tokenizer.token_bytes(BOS_ID)
    assert tokenizer.token_bytes(10**6) == b""


def test_the_bytes_of_a_sentencepiece_vocabulary_have_their_spaces(workers: Workers) -> None:
    vocabulary = {"<unk>": 0, "<0x0A>": 1, "<0xE4>": 2, "\u2581the": 3, "é": 4}
    fast = FastTokenizer(BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))  # noqa: S106
    fast.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer = Tokenizer(fast, workers=workers)
    assert [tokenizer.token_bytes(number) for number in range(1, 6)] == [
        b"\n", b"\xe4", b" the", "é".encode(), b"",
    ]  # fmt: skip


async def test_a_second_template_is_for_conversations_with_tools(tmp_path: Path, workers: Workers) -> None:
    folder = write_model(tmp_path)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = [
        {"name": "default", "template": "plain"},
        {
            "name": "tool_use",
            "template": "{% for tool in tools or [] %}{{ tool.name }}{% endfor %} with tools",
        },
    ]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    found = Tokenizer.load(folder, workers=workers)
    assert await render(found, USER) == "plain"
    assert await render(found, USER, tools=[{"name": "f"}], with_tools=True) == "f with tools"
    assert found.tool_template is not None


def test_special_tokens_that_calls_are_found_by_stay_in_the_text(tokenizer: Tokenizer) -> None:
    special = ["<|im_start|>", "<|im_end|>"]
    ids = byte_level_tokenizer().encode("".join(special), add_special_tokens=False).ids
    hidden = tokenizer.new_detokenizer(skip_special_tokens=True)
    assert hidden.feed(ids) == ""
    for shown, text in ((["<|im_end|>"], "<|im_end|>"), (special, "".join(special)), (["<none>"], "")):
        part = tokenizer.new_detokenizer(skip_special_tokens=True, shown=frozenset(shown))
        assert part.feed(ids) == text
    assert tokenizer.new_detokenizer(skip_special_tokens=False).feed(ids) == "".join(special)
