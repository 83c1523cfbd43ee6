"""Token ids to text while they come: never half a character, and in sum what decoding all at once gives."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_REPLACEMENT = "\ufffd"
_MAX_TOKENS_IN_CHARACTER = 4
"""A character has at most four bytes in UTF-8, so at most four tokens."""


class Detokenizer(Protocol):
    """The text of one choice. Constant work for a token, amortised; used by one choice only."""

    def feed(self, token_ids: Sequence[int]) -> str:
        """Take the next ids and return the text they complete."""
        ...

    def flush(self) -> str:
        """Return what was held back, once no more ids come; an unfinished character becomes U+FFFD."""
        ...


class BytesDetokenizer:
    """For byte-level vocabularies (GPT-2, Llama 3, Qwen, SmolLM2): every id stands for fixed bytes."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        """Make a detokenizer.

        Args:
            token_bytes: bytes by token id; empty for an id without text. Ids past its end have no text.
        """
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_ids: Sequence[int]) -> str:
        """Take the next ids and return the text they complete."""
        table = self._token_bytes
        limit = len(table)
        return self._decoder.decode(b"".join([table[number] for number in token_ids if number < limit]))

    def flush(self) -> str:
        """Return what was held back, once no more ids come."""
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For every other decoder: decodes a window of the last tokens again and returns what was added.

    The window begins at tokens whose text was returned before, so that a decoder that treats the first
    token in its own way (dropping a space) does so to text that is not returned again. Ids without text
    never enter the window. A run of byte tokens (``<0xE4>``) is decoded once it has ended, because one bad
    byte turns the whole run into U+FFFD.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        *,
        silent_ids: frozenset[int],
        byte_ids: frozenset[int],
        vocab_size: int,
    ) -> None:
        """Make a detokenizer.

        Args:
            decode: text of a list of ids.
            silent_ids: ids that decode to nothing (special tokens that are skipped).
            byte_ids: ids of single-byte tokens.
            vocab_size: ids from here on decode to nothing.
        """
        self._decode = decode
        self._silent_ids = silent_ids
        self._byte_ids = byte_ids
        self._vocab_size = vocab_size
        self._window: list[int] = []
        self._num_returned = 0  # tokens at the start of the window whose text was returned

    def feed(self, token_ids: Sequence[int]) -> str:
        """Take the next ids and return the text they complete."""
        pieces: list[str] = []
        for token_id in token_ids:
            if token_id in self._silent_ids or token_id >= self._vocab_size:
                continue
            self._window.append(token_id)
            if token_id not in self._byte_ids:
                pieces.append(self._advance(final=False))
        return "".join(pieces)

    def flush(self) -> str:
        """Return what was held back, once no more ids come."""
        return self._advance(final=True)

    def _advance(self, *, final: bool) -> str:
        """Return the text of the tokens not returned yet, or nothing while its last character is open."""
        num_new = len(self._window) - self._num_returned
        if not num_new:
            return ""
        shown = self._decode(self._window[: self._num_returned])
        text = self._decode(self._window)
        if text.endswith(_REPLACEMENT) and not final and num_new < _MAX_TOKENS_IN_CHARACTER:
            return ""
        if len(text) > len(shown):
            del self._window[: self._num_returned]
            self._num_returned = len(self._window)
        elif self._num_returned:
            # Tokens without text: keeping them would let the window grow. At the very start they stay,
            # because the first token may have lost a space that the next one must not lose again.
            del self._window[self._num_returned :]
        return text[len(shown) :]
