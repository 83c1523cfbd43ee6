"""Finds calls between tags in a text that comes in pieces. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelflume.router.tools.calls import Parsed
from kernelflume.router.tools.sequence import BETWEEN, CallSequence

if TYPE_CHECKING:
    from kernelflume.router.tools.calls import CallDelta


class TaggedParser:
    """Text, with calls after an opening tag and up to a closing one.

    What looks like a call and is none is given back as text. White space around calls belongs to neither.
    """

    def __init__(
        self,
        names: frozenset[str],
        *,
        opening: str | None,
        closing: str | None = None,
        max_calls: int | None = None,
        bare: bool = False,
    ) -> None:
        """Begin a choice.

        Args:
            names: functions that exist.
            opening: the tag before calls; None: they stand at the start of the text alone.
            closing: the tag after them; None: they end where something else begins.
            max_calls: end after as many; None: no limit.
            bare: calls may stand at the start of the text without a tag.
        """
        self._opening = opening
        self._closing = closing
        self._sequence = CallSequence(names, max_calls=max_calls)
        self._held = ""
        self._bare = bare
        self._inside = False
        self._ended = False  # inside, what follows is the closing tag or text
        self._tag = ""  # the opening tag, as long as no call came after it
        self._gap = ""  # white space that is text only if text follows
        self._has_text = False

    @property
    def num_calls(self) -> int:
        """Calls that have begun."""
        return self._sequence.num_calls

    @property
    def complete(self) -> bool:
        """True when as many calls as are wanted have ended."""
        return self._sequence.complete

    def feed(self, text: str) -> Parsed:
        """Take the next piece."""
        pieces: list[str] = []
        calls: list[CallDelta] = []
        self._held += text
        # Each of them says whether it got on; if not, more text is needed.
        while self._held and not self.complete and self._advance(pieces, calls):
            pass
        return Parsed("".join(pieces), calls)

    def flush(self) -> Parsed:
        """Return what was held back, once no more text comes."""
        pieces: list[str] = []
        unclaimed = ""
        if self._inside:
            unclaimed = self._tag + self._sequence.take_unclaimed()
            self._show(unclaimed, pieces)
        # What begins like the closing tag is one that was cut off, if calls came before.
        if not self.complete and not (self._ended and not unclaimed):
            self._show(self._held, pieces)
        if not self.num_calls:
            pieces.append(self._gap)
        self._held = self._gap = ""
        return Parsed("".join(pieces))

    def _advance(self, pieces: list[str], calls: list[CallDelta]) -> bool:
        if self._bare:
            return self._begin()
        if not self._inside:
            return self._read_text(pieces)
        if not self._ended:
            return self._read_calls(calls)
        return self._leave(pieces)

    def _begin(self) -> bool:
        """Decide at the start of the text whether calls stand there."""
        rest = self._held.lstrip()
        if not rest:
            return False
        self._bare = False
        self._inside = rest[0] in "{["
        return True

    def _read_text(self, pieces: list[str]) -> bool:
        if self._opening is None:
            self._show(self._held, pieces)
            self._held = ""
            return False
        at = self._held.find(self._opening)
        if at >= 0:
            self._show(self._held[:at], pieces)
            self._held = self._held[at + len(self._opening) :]
            self._inside, self._ended, self._tag = True, False, self._opening
            return True
        num_safe = len(self._held) - _beginning(self._held, self._opening)
        self._show(self._held[:num_safe], pieces)
        self._held = self._held[num_safe:]
        return False

    def _read_calls(self, calls: list[CallDelta]) -> bool:
        at, found = self._sequence.feed(self._held)
        if any(delta.name for delta in found):
            self._tag = self._gap = ""
            self._has_text = False
        calls += found
        self._held = self._held[at:]
        self._ended = bool(self._held) or self._sequence.failed
        return self._ended

    def _leave(self, pieces: list[str]) -> bool:
        """Read what follows calls: the closing tag, or text."""
        tag = self._closing
        if tag is not None and self._held != tag and tag.startswith(self._held):
            return False
        unclaimed = self._sequence.take_unclaimed()
        if tag is not None and self._held.startswith(tag) and not unclaimed.strip(BETWEEN):
            # Calls, or the empty list that says that none is needed.
            self._held = self._held[len(tag) :]
        else:
            self._show(self._tag + unclaimed, pieces)
        self._tag = ""
        self._inside = self._ended = False
        return True

    def _show(self, text: str, pieces: list[str]) -> None:
        """Give out text, but hold white space back at the start and after calls until more follows."""
        if not text:
            return
        if not text.strip() and not self._has_text:
            self._gap += text
            return
        pieces.append(self._gap + text)
        self._gap = ""
        self._has_text = True


class GuidedParser(TaggedParser):
    """A list of calls and nothing else, or a text that is none: what a guide to either leaves possible."""

    def __init__(self, names: frozenset[str], *, max_calls: int | None) -> None:
        """Begin a choice; see ``ToolFormat.new_parser``."""
        super().__init__(names, opening=None, max_calls=max_calls, bare=True)


def _beginning(text: str, tag: str) -> int:
    """Return the length of the longest end of ``text`` with which ``tag`` begins."""
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if tag.startswith(text[-length:]):
            return length
    return 0
