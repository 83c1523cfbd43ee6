"""Token ids of a text are those of its pieces between special tokens, for each tokenizer split so."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.byte_fallback import byte_fallback_tokenizer
from tests.router_parts import byte_level_tokenizer
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
)

from kernelflume.router.segments import SegmentCache, Splitter, describe
from kernelflume.router.tokenizer import LONG_TEXT_CHARS
from kernelflume.router.tokenizer import Tokenizer as RouterTokenizer
from kernelflume.router.workers import Workers

SPECIAL = ["<|bos|>", "<|im_start|>", "<|im_end|>"]
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def _byte_level(pre_tokenizer: pre_tokenizers.PreTokenizer) -> Tokenizer:
    tokenizer = byte_level_tokenizer()
    tokenizer.pre_tokenizer = pre_tokenizer
    return tokenizer


def gpt_2() -> Tokenizer:
    return _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))


def with_prefix_space() -> Tokenizer:
    return _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True))


def smollm2() -> Tokenizer:
    parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    return _byte_level(pre_tokenizers.Sequence(parts))


def llama_3() -> Tokenizer:
    parts = [
        pre_tokenizers.Split(Regex(LLAMA_3), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    return _byte_level(pre_tokenizers.Sequence(parts))


def qwen() -> Tokenizer:
    tokenizer = llama_3()
    tokenizer.normalizer = normalizers.NFC()
    # Ordinary tokens are found after the normalizer, special ones before it.
    tokenizer.add_tokens(
        ["<think>", "é plain", AddedToken("word", single_word=True), AddedToken(" x", lstrip=True)]
    )
    return tokenizer


def llama_2() -> Tokenizer:
    tokenizer = byte_fallback_tokenizer(SPECIAL)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


def metaspace(scheme: str) -> Tokenizer:
    tokenizer = byte_fallback_tokenizer(SPECIAL)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    return tokenizer


def bert() -> Tokenizer:
    words = ["<unk>", *SPECIAL, "a", "b", "hello", "##a", "##b", "1", "世", "'", "word"]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))  # noqa: S106 - a word of the vocabulary
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def unigram() -> Tokenizer:
    pieces = [
        ("<unk>", 0.0),
        ("▁", -2.0),
        ("a", -3.0),
        ("▁a", -2.5),
        ("b", -3.0),
        ("ab", -4.0),
        ("▁Hello", -5.0),
    ]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


MAKERS = {
    "gpt 2": gpt_2,
    "with a prefix space": with_prefix_space,
    "smollm2": smollm2,
    "llama 3": llama_3,
    "qwen": qwen,
    "llama 2": llama_2,
    "metaspace": lambda: metaspace("always"),
    "bert": bert,
    "unigram": unigram,
}
WORKERS = Workers(ThreadPoolExecutor(1), timeout_s=60.0)
PLAIN = {name: make() for name, make in MAKERS.items()}
WRAPPED = {name: RouterTokenizer(make(), workers=WORKERS) for name, make in MAKERS.items()}

BROKEN = ["<|im_", "start|>", "<|", "|>", "<", ">", "<|im_start|", "|im_end|>", "<|im_start<|im_end|>|>"]
WORDS = [
    "Hello",
    " Hello",
    "a",
    " a",
    "b ",
    "word",
    " x",
    "x",
    "<think>",
    "é plain",
    "e\u0301 plain",
    "'s",
    "I'M",
]
BLANKS = [" ", "  ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u200d", "▁"]
OTHERS = ["123", "4", "世界", "\ufb01", "İ", "ß", "😀", "\ufffd", "\u0301", "é", "\x00", "."]
TEXTS = st.lists(
    st.sampled_from(SPECIAL) | st.sampled_from(BROKEN + WORDS + BLANKS + OTHERS) | st.text(max_size=3),
    max_size=12,
).map("".join)


@pytest.mark.parametrize("name", MAKERS)
def test_these_tokenizers_are_split(name: str) -> None:
    assert Splitter.of(PLAIN[name], describe(PLAIN[name])) is not None


@pytest.mark.parametrize("name", MAKERS)
@given(texts=st.lists(TEXTS, min_size=1, max_size=3), special=st.booleans())
def test_any_text_has_the_ids_of_the_plain_tokenizer(name: str, texts: list[str], special: bool) -> None:
    async def encode() -> list[list[int]]:
        wrapped = WRAPPED[name]
        return [
            await wrapped.encode(text, add_special_tokens=special, max_tokens=10**6, owner="")
            for text in (*texts, *texts)
        ]

    expected = [PLAIN[name].encode(text, add_special_tokens=special).ids for text in texts]
    assert asyncio.run(encode()) == expected * 2


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=10)
@given(parts=st.lists(TEXTS, min_size=1, max_size=4), repeats=st.sampled_from([1, 30, 600]))
def test_so_has_any_long_one(name: str, parts: list[str], repeats: int) -> None:
    long_part = "Hello a 4 " * (LONG_TEXT_CHARS // 8)
    text = SPECIAL[0].join(parts) * repeats + long_part
    text = text[: 40 * LONG_TEXT_CHARS]

    async def encode() -> list[int]:
        return await WRAPPED[name].encode(text, add_special_tokens=False, max_tokens=10**7, owner="")

    assert asyncio.run(encode()) == PLAIN[name].encode(text, add_special_tokens=False).ids


def _greedy() -> Tokenizer:
    tokenizer = gpt_2()
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True, normalized=False)])
    return tokenizer


def _whole_word() -> Tokenizer:
    tokenizer = gpt_2()
    tokenizer.add_special_tokens([AddedToken("stop", single_word=True, special=True, normalized=False)])
    return tokenizer


def _random() -> Tokenizer:
    tokenizer = gpt_2()
    tokenizer.model.dropout = 0.5
    return tokenizer


def _without_special_tokens() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    tokenizer.add_tokens(["a"])
    return tokenizer


@pytest.mark.parametrize(
    "make", [lambda: metaspace("first"), _greedy, _whole_word, _random, _without_special_tokens]
)
def test_a_tokenizer_whose_pieces_depend_on_each_other_is_not_split(make: object) -> None:
    assert callable(make)
    tokenizer = make()
    assert Splitter.of(tokenizer, describe(tokenizer)) is None


def test_a_splitter_that_is_wrong_is_found_out() -> None:
    tokenizer = metaspace("first")
    splitter = Splitter({token: number for number, token in enumerate(SPECIAL, start=1)})
    assert not splitter.agrees_with(tokenizer)


@given(
    tokens=st.sets(st.text("ab.<", min_size=1, max_size=5), min_size=1, max_size=9),
    text=st.text("ab.<", max_size=40),
)
def test_of_special_tokens_that_begin_alike_the_longest_is_meant(tokens: set[str], text: str) -> None:
    longest_first = sorted(tokens, key=len, reverse=True)
    expected = re.split("(" + "|".join(map(re.escape, longest_first)) + ")", text)
    pieces = Splitter({token: number for number, token in enumerate(tokens)}).split(text)
    assert [piece.text for piece in pieces] == [piece for piece in expected if piece]


def test_a_text_of_beginnings_of_many_special_tokens_is_split_as_fast_as_any() -> None:
    splitter = Splitter({f"<unused{number}>": number for number in range(6_242)})
    text = "<unused6241" * 100_000  # trying each token at each place would take minutes
    assert [piece.text for piece in splitter.split(f"{text}><unused7>")] == [
        text[: -len("<unused6241")],
        "<unused6241>",
        "<unused7>",
    ]


def test_special_tokens_nested_too_deeply_are_not_split_at() -> None:
    tokenizer = gpt_2()
    tokenizer.add_special_tokens(["<" * length for length in range(1, 1_200)])
    assert Splitter.of(tokenizer, describe(tokenizer)) is None


def test_what_is_kept_is_bounded_and_each_owners_own() -> None:
    cache = SegmentCache(64 * 1024)
    for number in range(1000):
        cache.keep("a", f"text {number} " * 10, range(50))
        cache.find("a", ["text 0 " * 10])
        assert cache.num_bytes <= 64 * 1024
    assert list(cache.find("a", ["text 0 " * 10])["text 0 " * 10]) == list(range(50))
    assert not cache.find("a", ["text 1 " * 10])
    assert not cache.find("b", ["text 999 " * 10])
    before = cache.num_bytes
    cache.keep("a", "x" * 64 * 1024, range(9))
    assert cache.num_bytes == before
