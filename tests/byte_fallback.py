"""A small tokenizer in the manner of SentencePiece."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, models

if TYPE_CHECKING:
    from collections.abc import Sequence


def byte_fallback_tokenizer(special: Sequence[str]) -> Tokenizer:
    """Return a tokenizer with spaces as U+2581 and bytes for what has no token; it normalizes nothing.

    Args:
        special: special tokens besides ``<unk>``.
    """
    pieces = ["<unk>", *special, *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁▁", "▁a", "▁Hello", "a", "b", "Hello", "世", "\ufffd", "é", "\n"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: number for number, piece in enumerate(pieces)},
            merges=[("▁", "▁"), ("▁", "a")],
            unk_token="<unk>",  # noqa: S106 - a word of the vocabulary
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(["<unk>", *special])
    return tokenizer
