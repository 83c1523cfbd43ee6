"""The tokens of a model by id, as its tokenizer writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What there is to know of tokens without tokenizing."""

    tokens: tuple[str, ...]
    """By id, in the tokenizer's own alphabet; empty for an id without a text."""
    description: str
    """The whole tokenizer as JSON; its decoder says what alphabet that is."""


def load_vocabulary(folder: Path) -> Vocabulary:
    """Read the vocabulary of a model's folder in Hugging Face layout.

    Raises:
        ConfigurationError: its tokenizer.json is missing or cannot be understood.
    """
    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        raise ConfigurationError(f"model: cannot read {path}: {error}") from error
    by_text = tokenizer.get_vocab(with_added_tokens=True)
    tokens = [""] * (max(by_text.values(), default=-1) + 1)
    for token, number in by_text.items():
        tokens[number] = token
    return Vocabulary(tuple(tokens), tokenizer.to_str())
