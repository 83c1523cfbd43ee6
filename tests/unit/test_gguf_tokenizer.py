# ruff: noqa: S105, S106 - names of special tokens are no passwords
from __future__ import annotations

from typing import Any

import pytest
from gguf import TokenType
from tests.gguf_files import TEXTS, byte_pair_metadata, sentence_piece_metadata, sentence_piece_tables
from tokenizers import AddedToken
from transformers import GPT2Tokenizer, LlamaTokenizer, Qwen2Tokenizer

from kernelflume.checkpoint.gguf_tokenizer import build_tokenizer, tokenizer_config
from kernelflume.core.errors import ConfigurationError


def vocabulary(metadata: dict[str, Any]) -> dict[str, int]:
    return {token: number for number, token in enumerate(metadata["tokenizer.ggml.tokens"])}


def merges(metadata: dict[str, Any]) -> list[tuple[str, ...]]:
    return [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]


@pytest.mark.parametrize("text", TEXTS)
def test_qwen2_tokens_equal_those_of_transformers(text: str) -> None:
    metadata = byte_pair_metadata("qwen2")
    theirs = Qwen2Tokenizer(
        vocab=vocabulary(metadata),
        merges=merges(metadata),
        unk_token="<unk>",
        eos_token="</s>",
        pad_token="</s>",
    )

    assert build_tokenizer(metadata).encode(text).ids == theirs(text)["input_ids"]


@pytest.mark.parametrize("text", TEXTS)
def test_gpt2_tokens_equal_those_of_transformers(text: str) -> None:
    metadata = byte_pair_metadata("gpt-2")
    theirs = GPT2Tokenizer(
        vocab=vocabulary(metadata),
        merges=merges(metadata),
        unk_token="<unk>",
        eos_token="</s>",
        bos_token="<s>",
    )

    assert build_tokenizer(metadata).encode(text).ids == theirs(text)["input_ids"]


@pytest.mark.parametrize("text", TEXTS)
def test_sentence_piece_tokens_equal_those_of_transformers(text: str) -> None:
    tokens, _, trained_merges = sentence_piece_tables()
    theirs = LlamaTokenizer(
        vocab={token: number for number, token in enumerate(tokens)},
        merges=[tuple(merge.split(" ")) for merge in trained_merges],
    )
    metadata = sentence_piece_metadata() | {"tokenizer.ggml.add_bos_token": False}

    # LlamaTokenizer takes a leading space for the one it would add; llama.cpp and Llama 2 do not.
    assert (
        build_tokenizer(metadata).encode(text.lstrip()).ids
        == theirs(text.lstrip(), add_special_tokens=False)["input_ids"]
    )


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
@pytest.mark.parametrize("text", TEXTS)
def test_byte_pair_text_comes_back(pre: str, text: str) -> None:
    import unicodedata

    tokenizer = build_tokenizer(byte_pair_metadata(pre))
    expected = unicodedata.normalize("NFC", text) if pre == "qwen2" else text

    assert tokenizer.decode(tokenizer.encode(text).ids) == expected


@pytest.mark.parametrize("text", TEXTS)
def test_sentence_piece_text_comes_back(text: str) -> None:
    tokenizer = build_tokenizer(sentence_piece_metadata())

    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", [" 12345"]),
        ("smollm", list(" 12345")),
        ("qwen2", list(" 12345")),
        ("llama-bpe", [" ", "123", "45"]),
    ],
)
def test_digits_are_cut_as_each_family_does(pre: str, pieces: list[str]) -> None:
    splitter = build_tokenizer(byte_pair_metadata(pre)).pre_tokenizer

    assert [piece.replace("Ġ", " ") for piece, _ in splitter.pre_tokenize_str(" 12345")] == pieces


def test_control_tokens_are_special_and_user_defined_ones_whole() -> None:
    metadata = byte_pair_metadata("smollm")
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "<think>"]
    metadata["tokenizer.ggml.token_type"] = [
        *metadata["tokenizer.ggml.token_type"],
        int(TokenType.USER_DEFINED),
    ]
    tokenizer = build_tokenizer(metadata)
    think = len(metadata["tokenizer.ggml.tokens"]) - 1

    ids = tokenizer.encode("<s><think>").ids

    assert ids == [1, think]
    assert tokenizer.decode(ids) == "<think>"
    assert tokenizer.get_vocab_size() == think + 1
    added = tokenizer.get_added_tokens_decoder()
    assert added[1] == AddedToken("<s>", special=True, normalized=False)


@pytest.mark.parametrize(
    ("pre", "flags", "expected"),
    [
        ("smollm", {}, []),
        ("smollm", {"add_bos_token": True}, [1]),
        ("smollm", {"add_bos_token": True, "add_eos_token": True}, [1, 2]),
        ("llama-bpe", {}, [1]),
        ("llama-bpe", {"add_bos_token": False}, []),
    ],
)
def test_tokens_at_the_ends(pre: str, flags: dict[str, bool], expected: list[int]) -> None:
    metadata = byte_pair_metadata(pre) | {f"tokenizer.ggml.{name}": value for name, value in flags.items()}

    assert build_tokenizer(metadata).encode("").ids == expected


def test_configuration_names_special_tokens_and_template() -> None:
    metadata = byte_pair_metadata("smollm") | {"tokenizer.chat_template": "{{ x }}"}

    fields = tokenizer_config(metadata)

    assert fields["bos_token"] == "<s>"
    assert fields["eos_token"] == "</s>"
    assert fields["unk_token"] == "<unk>"
    assert fields["chat_template"] == "{{ x }}"
    assert "pad_token" not in fields


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.pre": "tekken"}, "'tekken' is not supported"),
        ({"tokenizer.ggml.model": "t5"}, "'t5' is not supported"),
        ({"tokenizer.ggml.merges": ["ab"]}, "merge 'ab'"),
        ({"tokenizer.ggml.merges": ["<none> <either>"]}, "damaged"),
        ({"tokenizer.ggml.tokens": []}, "no tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.token_type": [1]}, "1 token types"),
        (
            {"tokenizer.ggml.bos_token_id": 10**6, "tokenizer.ggml.add_bos_token": True},
            "outside the vocabulary",
        ),
        ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.0]}, "1 scores"),
    ],
)
def test_an_unusable_table_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build_tokenizer(byte_pair_metadata("smollm") | change)
