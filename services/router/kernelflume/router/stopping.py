"""Stop strings: found across token boundaries, never shown to the client. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 1024


@dataclass(frozen=True, slots=True)
class Scan:
    """What one piece of text led to."""

    text: str
    """Text that is safe to show: no stop string can begin in it any more."""
    matched: str | None = None
    """The stop string that ended the text, if any; nothing that follows may be shown."""


class StopMatcher:
    """Looks for stop strings in a text that comes in pieces; used by one choice only.

    The stop string that is complete first wins, the longest of those that end at the same character. The
    outcome depends on the text alone, not on how it was cut into pieces.
    """

    def __init__(self, stops: Sequence[str], *, include_match: bool = False) -> None:
        """Make a matcher.

        Args:
            stops: strings to look for, none of them empty.
            include_match: show the stop string itself too.
        """
        self._stops = tuple(stops)
        self._include_match = include_match
        self._held = ""
        # Characters at the start of ``_held`` in which no stop string may end: they came unarmed.
        self._num_unarmed = 0

    def feed(self, piece: str, *, armed: bool = True) -> Scan:
        """Take the next piece and return what may be shown now.

        Args:
            piece: text that follows the pieces so far.
            armed: False while a stop string that ends in this piece must not count (min_tokens).
        """
        if not self._stops:
            return Scan(piece)
        text = self._held + piece
        if armed:
            found = self._find(text)
            if found is not None:
                start, stop = found
                self._held = ""
                return Scan(text[: start + len(stop) if self._include_match else start], stop)
        num_safe = len(text) - self._longest_beginning(text)
        self._held = text[num_safe:]
        self._num_unarmed = max(0, self._num_unarmed - num_safe) if armed else len(self._held)
        return Scan(text[:num_safe])

    def flush(self) -> str:
        """Return the text held back, once no more text comes."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> tuple[int, str] | None:
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = text.find(stop, max(0, self._num_unarmed - len(stop) + 1))
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return best and (best[1], best[2])

    def _longest_beginning(self, text: str) -> int:
        """Return the length of the longest end of ``text`` with which a stop string can begin."""
        longest = 0
        for stop in self._stops:
            # Only a place nearer to the end than the stop string is long; a whole match is no beginning.
            at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
            while 0 <= at < len(text) - longest:
                if stop.startswith(text[at:]):
                    longest = len(text) - at
                    break
                at = text.find(stop[0], at + 1)
        return longest
