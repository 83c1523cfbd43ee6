"""Text between special tokens: its token ids are the same wherever it stands, so they are kept.

A tokenizer looks for special tokens first, and then works on what lies between them piece by piece. The
system prompt and earlier turns of a conversation come again with each request, and need no second look.
"""

from __future__ import annotations

import json
import re
import threading
from array import array
from collections import OrderedDict
from dataclasses import dataclass
from itertools import groupby, takewhile
from operator import itemgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tokenizers import Tokenizer as FastTokenizer

_PIECEWISE_PRE_TOKENIZERS = frozenset(
    {
        "BertPreTokenizer",
        "ByteLevel",
        "CharDelimiterSplit",
        "Digits",
        "Punctuation",
        "Split",
        "UnicodeScripts",
        "Whitespace",
        "WhitespaceSplit",
    }
)
"""Those that see one piece at a time. Others may treat the beginning of a text in a way of its own."""
_PIECEWISE_METASPACE = frozenset({"always", "never"})
_PROBES = ("a", " a", "a ", " ", "\n", "\n\na", "A b", "1 2", "'s", "é\u0301", "世界", "\u2581", "<", "|>")
_ENTRY_BYTES = 400
"""What an entry takes besides its text and ids."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a text: a special token, or what lies between two of them."""

    text: str
    token_id: int | None
    """Of a special token."""


class Splitter:
    """Splits texts at special tokens, as a tokenizer does before all else. Immutable."""

    def __init__(self, ids: dict[str, int]) -> None:
        """Make one.

        Args:
            ids: of the special tokens, by their text.
        """
        self._ids = ids
        self._pattern = re.compile(f"({_any_of(sorted(ids))})")

    @classmethod
    def of(cls, tokenizer: FastTokenizer, description: dict[str, Any]) -> Splitter | None:
        """Return the splitter of a tokenizer, or None where pieces are not independent of each other.

        Args:
            tokenizer: with truncation and padding off.
            description: of the tokenizer, as ``tokenizer.json`` has it.
        """
        tokens = [token for token in description["added_tokens"] if not token["normalized"]]
        if not tokens or any(token["lstrip"] or token["rstrip"] or token["single_word"] for token in tokens):
            return None
        if description["model"].get("dropout") or not _is_piecewise(description["pre_tokenizer"]):
            return None
        try:
            splitter = cls({token["content"]: token["id"] for token in tokens})
        except RecursionError:  # hundreds of them of which each begins the next
            return None
        return splitter if splitter.agrees_with(tokenizer) else None

    def split(self, text: str) -> Iterator[Segment]:
        """Give the pieces of a text in order; none is empty."""
        for place, piece in enumerate(self._pattern.split(text)):
            if piece:
                yield Segment(piece, self._ids[piece] if place % 2 else None)

    def agrees_with(self, tokenizer: FastTokenizer) -> bool:
        """Tell whether some difficult texts have the ids of their pieces, as they must."""
        special = max(self._ids, key=len)
        texts = [f"{left}{special}{right}{special}{left}" for left in _PROBES for right in _PROBES]
        texts += [f"{special[:-1]}{special}{special}{special[1:]}", f"{special[:-1]} {special[-1:]}"]
        return all(self._ids_by_pieces(tokenizer, text) == _plain_ids(tokenizer, text) for text in texts)

    def _ids_by_pieces(self, tokenizer: FastTokenizer, text: str) -> list[int]:
        ids: list[int] = []
        for piece in self.split(text):
            ids += _plain_ids(tokenizer, piece.text) if piece.token_id is None else (piece.token_id,)
        return ids


class SegmentCache:
    """Token ids of texts that came before, those used last. Any thread may use it.

    Each owner has entries of its own: how fast an answer comes tells nothing of what others have sent.
    """

    def __init__(self, max_bytes: int) -> None:
        """Make an empty cache of about ``max_bytes`` of memory at most."""
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._entries: OrderedDict[tuple[str, str], array[int]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Memory in use, about."""
        return self._num_bytes

    def find(self, owner: str, texts: Iterable[str]) -> dict[str, Sequence[int]]:
        """Return the ids of those texts that are there."""
        found: dict[str, Sequence[int]] = {}
        with self._lock:
            for text in texts:
                ids = self._entries.get((owner, text))
                if ids is not None:
                    self._entries.move_to_end((owner, text))
                    found[text] = ids
        return found

    def keep(self, owner: str, text: str, token_ids: Sequence[int]) -> None:
        """Add a text, unless it would take the room of too many others."""
        ids = array("I", token_ids)
        size = _size(owner, text, ids)
        if size > self._max_bytes // 8:
            return
        with self._lock:
            key = (owner, text)
            if key in self._entries:
                return
            self._entries[key] = ids
            self._num_bytes += size
            while self._num_bytes > self._max_bytes:
                (old_owner, old_text), old_ids = self._entries.popitem(last=False)
                self._num_bytes -= _size(old_owner, old_text, old_ids)


def describe(tokenizer: FastTokenizer) -> dict[str, Any]:
    """Return what ``tokenizer.json`` says of a tokenizer."""
    description: dict[str, Any] = json.loads(tokenizer.to_str())
    return description


def _any_of(texts: Sequence[str]) -> str:
    """Return a pattern that matches the longest of some texts that stands at a place.

    Texts that begin alike share that part of the pattern: of some thousand special tokens none but those that
    a place can still be are tried there, else a text of their beginnings alone would take minutes.

    Args:
        texts: sorted, none of them empty, each once.
    """
    alternatives: list[str] = []
    for _, alike in groupby(texts, key=itemgetter(0)):
        group = list(alike)
        first_and_last = zip(group[0], group[-1], strict=False)
        common = "".join(char for char, other in takewhile(lambda both: both[0] == both[1], first_and_last))
        rests = [text[len(common) :] for text in group]
        if len(rests) == 1:
            alternatives.append(re.escape(common))
        elif rests[0]:
            alternatives.append(f"{re.escape(common)}(?:{_any_of(rests)})")
        else:
            alternatives.append(f"{re.escape(common)}(?:{_any_of(rests[1:])})?")
    return "|".join(alternatives)


def _is_piecewise(pre_tokenizer: dict[str, Any] | None) -> bool:
    match pre_tokenizer:
        case None:
            return True
        case {"type": "Sequence", "pretokenizers": [*parts]}:
            return all(map(_is_piecewise, parts))
        case {"type": "Metaspace", "prepend_scheme": scheme}:
            return scheme in _PIECEWISE_METASPACE
        case {"type": kind}:
            return kind in _PIECEWISE_PRE_TOKENIZERS
    return False


def _plain_ids(tokenizer: FastTokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def _size(owner: str, text: str, ids: array[int]) -> int:
    return _ENTRY_BYTES + 4 * (len(owner) + len(text)) + ids.itemsize * len(ids)
