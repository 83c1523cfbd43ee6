"""Rebuilds a model's tokenizer from the metadata of a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gguf import TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")

_SPACE = "\u2581"  # SentencePiece's visible space


@dataclass(frozen=True, slots=True)
class _BytePairStyle:
    """How one family cuts text before merging bytes."""

    split: str | None = None
    """Pattern of words; None: GPT-2's own."""
    single_digits: bool = False
    compose: bool = False
    """Unicode NFC first."""
    ignore_merges: bool = False
    """A word that is in the vocabulary is one token, whatever the merges say."""
    add_bos: bool = False
    """Where the file does not say."""


_BYTE_PAIR_STYLES = {
    "gpt-2": _BytePairStyle(),
    "smollm": _BytePairStyle(single_digits=True),
    "llama-bpe": _BytePairStyle(split=_LLAMA3_SPLIT, ignore_merges=True, add_bos=True),
    "qwen2": _BytePairStyle(split=_QWEN2_SPLIT, compose=True),
}
"""By ``tokenizer.ggml.pre``."""

_SPECIAL_ROLES = ("bos", "eos", "unknown", "padding")
_ROLE_NAMES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


def build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer.

    Raises:
        ConfigurationError: it is of a kind that is not supported, or its tables do not fit together.
    """
    tokens = _list(metadata, "tokens")
    types = metadata.get("tokenizer.ggml.token_type") or [int(TokenType.NORMAL)] * len(tokens)
    if len(types) != len(tokens):
        raise ConfigurationError(
            f"model: the GGUF file has {len(tokens)} tokens and {len(types)} token types"
        )
    model = metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        tokenizer, add_bos = _byte_pair(metadata, tokens)
    elif model == "llama":
        tokenizer, add_bos = _sentence_piece(metadata, tokens), True
    else:
        raise ConfigurationError(
            f"model: GGUF tokenizer model {model!r} is not supported, only gpt2 and llama"
        )
    _add_tokens(tokenizer, tokens, types)
    _add_template(tokenizer, metadata, tokens, add_bos=add_bos)
    return tokenizer


def tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``tokenizer_config.json``: the names of special tokens and the chat template."""
    tokens = _list(metadata, "tokens")
    fields: dict[str, Any] = {
        "clean_up_tokenization_spaces": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    for role in _SPECIAL_ROLES:
        token = _special(metadata, role, tokens)
        if token is not None:
            fields[_ROLE_NAMES[role]] = token
    if template := metadata.get("tokenizer.chat_template"):
        fields["chat_template"] = template
    return fields


def _byte_pair(metadata: Mapping[str, Any], tokens: list[str]) -> tuple[Tokenizer, bool]:
    name = metadata.get("tokenizer.ggml.pre", "gpt-2")
    style = _BYTE_PAIR_STYLES.get(name)
    if style is None:
        raise ConfigurationError(
            f"model: GGUF pre-tokenizer {name!r} is not supported, only {', '.join(_BYTE_PAIR_STYLES)}"
        )
    merges = [_merge(line) for line in _list(metadata, "merges")]
    tokenizer = Tokenizer(
        _bpe(vocab=_vocabulary(tokens), merges=merges, ignore_merges=style.ignore_merges, fuse_unk=False)
    )
    if style.compose:
        tokenizer.normalizer = normalizers.NFC()
    steps: list[pre_tokenizers.PreTokenizer] = []
    if style.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if style.split is not None:
        steps.append(pre_tokenizers.Split(Regex(style.split), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=style.split is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, style.add_bos


def _sentence_piece(metadata: Mapping[str, Any], tokens: list[str]) -> Tokenizer:
    vocabulary = _vocabulary(tokens)
    scores = _list(metadata, "scores")
    if len(scores) != len(tokens):
        raise ConfigurationError(f"model: the GGUF file has {len(tokens)} tokens and {len(scores)} scores")
    tokenizer = Tokenizer(
        _bpe(
            vocab=vocabulary,
            merges=_merges_from_scores(vocabulary, scores),
            unk_token=_special(metadata, "unknown", tokens),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    steps: list[normalizers.Normalizer] = [normalizers.Prepend(_SPACE)] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    parts: list[decoders.Decoder] = [
        decoders.Replace(_SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if prefix else parts)
    return tokenizer


def _merges_from_scores(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Return merges that join pieces in the order SentencePiece does: the best score of the result first.

    Of several ways to one piece the one with the longest left part comes first, as in transformers.
    """
    found: list[tuple[float, int, int, tuple[str, str]]] = []
    for piece, number in vocabulary.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocabulary and right in vocabulary:
                found.append((-scores[number], -len(left), -len(right), (left, right)))
    found.sort(key=lambda merge: merge[:3])
    return [merge[3] for merge in found]


def _add_tokens(tokenizer: Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Make control tokens special and user-defined ones whole; their numbers are those in the vocabulary."""
    special = [
        AddedToken(token, special=True, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN)
    ]
    whole = [
        AddedToken(token, special=False, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind == TokenType.USER_DEFINED
    ]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(whole)


def _add_template(
    tokenizer: Tokenizer, metadata: Mapping[str, Any], tokens: list[str], *, add_bos: bool
) -> None:
    before = _edge(metadata, "bos", tokens, default=add_bos)
    after = _edge(metadata, "eos", tokens, default=False)
    ends = [end for end in (before, after) if end is not None]
    if not ends:
        return
    first, last = ([end[0]] if end else [] for end in (before, after))
    single = [*first, "$A", *last]
    second = [f"{part}:1" for part in (*first, "$B", *last)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=[*single, *second], special_tokens=ends
    )


def _edge(
    metadata: Mapping[str, Any], role: str, tokens: list[str], *, default: bool
) -> tuple[str, int] | None:
    if not metadata.get(f"tokenizer.ggml.add_{role}_token", default):
        return None
    token = _special(metadata, role, tokens)
    return None if token is None else (token, int(metadata[f"tokenizer.ggml.{role}_token_id"]))


def _special(metadata: Mapping[str, Any], role: str, tokens: list[str]) -> str | None:
    number: int | None = metadata.get(f"tokenizer.ggml.{role}_token_id")
    if number is None:
        return None
    if not 0 <= number < len(tokens):
        raise ConfigurationError(f"model: tokenizer.ggml.{role}_token_id {number} is outside the vocabulary")
    return tokens[number]


def _vocabulary(tokens: list[str]) -> dict[str, int]:
    vocabulary: dict[str, int] = {}
    for number, token in enumerate(tokens):
        vocabulary.setdefault(token, number)
    return vocabulary


def _merge(line: str) -> tuple[str, str]:
    # A part may begin with a space only in vocabularies that are not byte-level, which this is not.
    left, separator, right = line.partition(" ")
    if not separator:
        raise ConfigurationError(f"model: the GGUF file has a damaged tokenizer merge {line!r}")
    return left, right


def _list(metadata: Mapping[str, Any], name: str) -> list[Any]:
    values = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(values, list) or not values:
        raise ConfigurationError(f"model: the GGUF file has no tokenizer.ggml.{name}")
    return values


def _bpe(**arguments: Any) -> BPE:
    try:
        return BPE(**arguments)
    except Exception as error:  # the library raises nothing narrower for a bad merge
        raise ConfigurationError(f"model: the GGUF file's tokenizer is damaged: {error}") from error
