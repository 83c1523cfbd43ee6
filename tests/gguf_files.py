"""Tiny GGUF files and the tokenizer tables inside them."""

# ruff: noqa: S105, S106 - names of special tokens are no passwords
from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quantize
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from kernelflume.checkpoint.source import resolve

if TYPE_CHECKING:
    import multiprocessing
    from collections.abc import Iterable

    import numpy.typing as npt

TEXTS = (
    "Hello, world! It's 12345 o'clock, isn't it?",
    "  two spaces,\ttabs\n\n\nand   lines \r\n end  ",
    "def f(x):\n    return x**2 + 3.14e-10  # naïve café",
    "数学很有趣。日本語のテキスト、한국어 텍스트.",
    "Привет, мир! Γειά σου Κόσμε שלום عالم",  # noqa: RUF001 - Greek letters are the point
    "emoji 👩‍👩‍👧‍👦 🇫🇷 ✌🏽 and e\u0301 combining",
    "a",
    "",
    "\u00a0non-breaking\u2003em space\u200bzero",
    "CamelCaseWORDS snake_case 0x1F 1,000,000.50",
)

CONTROL = ("<unk>", "<s>", "</s>")


def byte_pair_tables(vocab_size: int = 600) -> tuple[list[str], list[str]]:
    """Train a byte-level BPE on ``TEXTS``; return its tokens by number and its merges as GGUF writes them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return _tables(tokenizer)


def sentence_piece_tables(vocab_size: int = 500) -> tuple[list[str], list[float], list[str]]:
    """Train a BPE over visible spaces; return tokens, scores and the merges the scores stand for."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    specials = [*CONTROL, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    tokens, merges = _tables(tokenizer)
    ranks = {merge.replace(" ", ""): -float(rank + 1) for rank, merge in enumerate(merges)}
    return tokens, [ranks.get(token, -1e6) for token in tokens], merges


def _tables(tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    vocab = tokenizer.get_vocab()
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return sorted(vocab, key=vocab.__getitem__), [" ".join(pair) for pair in merges]


def byte_pair_metadata(pre: str) -> dict[str, Any]:
    """Tokenizer metadata of a gpt2-style file as the reader returns it."""
    tokens, merges = byte_pair_tables()
    types = [int(TokenType.CONTROL) if token in CONTROL else int(TokenType.NORMAL) for token in tokens]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def sentence_piece_metadata() -> dict[str, Any]:
    """Tokenizer metadata of a llama-style file as the reader returns it."""
    tokens, scores, _ = sentence_piece_tables()
    types = [
        int(TokenType.UNKNOWN)
        if token == "<unk>"
        else int(TokenType.CONTROL)
        if token in CONTROL
        else int(TokenType.BYTE)
        if token.startswith("<0x")
        else int(TokenType.NORMAL)
        for token in tokens
    ]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def write_gguf(
    path: Path,
    architecture: str,
    fields: dict[str, int | float],
    tensors: Iterable[tuple[str, npt.NDArray[np.float32], GGMLQuantizationType]],
    *,
    pre: str = "smollm",
    chat_template: str | None = "{{ messages[0]['content'] }}",
) -> None:
    """Write a file with a gpt2-style tokenizer; ``fields`` go under the architecture's name."""
    writer = GGUFWriter(path, architecture)
    for name, value in fields.items():
        if isinstance(value, float):
            writer.add_float32(f"{architecture}.{name}", value)
        else:
            writer.add_uint32(f"{architecture}.{name}", value)
    tokenizer = byte_pair_metadata(pre)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokenizer["tokenizer.ggml.tokens"])
    writer.add_token_types(tokenizer["tokenizer.ggml.token_type"])
    writer.add_token_merges(tokenizer["tokenizer.ggml.merges"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    for name, values, kind in tensors:
        if kind in (GGMLQuantizationType.F32, GGMLQuantizationType.F16):
            writer.add_tensor(name, quantize(values, kind))
        else:
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleave(weight: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Store rows as llama.cpp does for the llama architecture: half-split rotary pairs side by side."""
    halves = weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def damaged(data: bytes, *, seed: int) -> bytes:
    """Return ``data`` cut short at, or changed in, a place drawn from ``seed`` in its first 4 KiB."""
    choose = random.Random(seed)  # noqa: S311 - the same damage every time, no secret
    place = choose.randrange(4, min(len(data), 4096))
    if seed % 2:
        return data[:place]
    return data[:place] + bytes([data[place] ^ (1 << choose.randrange(8))]) + data[place + 1 :]


def convert_and_report(file: str, cache_dir: str, results: multiprocessing.Queue[tuple[str, int]]) -> None:
    """Resolve ``file`` in a process of its own; put its revision and the number of progress calls."""
    calls: list[int] = []
    checkpoint = resolve(file, cache_dir=Path(cache_dir), progress=lambda done, _total: calls.append(done))
    results.put((checkpoint.revision, len(calls)))
