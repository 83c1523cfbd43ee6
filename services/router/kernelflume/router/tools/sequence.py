"""Reads calls that follow one another, as a list or with marks between them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelflume.router.tools.calls import CallDelta, new_call_id
from kernelflume.router.tools.reader import CallReader

if TYPE_CHECKING:
    from collections.abc import Callable

BETWEEN = " \t\r\n,;[]"
"""Characters that stand between calls, or around a list of them."""


class CallSequence:
    """The calls of one choice: numbers them, and says where something else begins."""

    def __init__(
        self,
        names: frozenset[str],
        *,
        max_calls: int | None = None,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        """Begin.

        Args:
            names: functions that exist.
            max_calls: take no more; None: no limit.
            new_id: gives each call its id.
        """
        self._names = names
        self._max_calls = max_calls
        self._new_id = new_id
        self._reader: CallReader | None = None
        self._started = False
        self._unclaimed: list[str] = []
        self.num_calls = 0
        """Calls that have begun."""
        self.failed = False
        """True after an object that is no call, or a broken one: take what is unclaimed before going on."""

    @property
    def complete(self) -> bool:
        """True when as many calls as are wanted have ended."""
        return self._reader is None and self._max_calls is not None and self.num_calls >= self._max_calls

    def feed(self, text: str) -> tuple[int, list[CallDelta]]:
        """Take calls from the start of ``text``.

        Returns:
            The index of the first character that was not taken, because it can belong to no call, and what
            was added to calls.
        """
        deltas: list[CallDelta] = []
        at = 0
        while at < len(text) and not self.complete:
            if self._reader is None:
                if text[at] in BETWEEN:
                    self._unclaimed.append(text[at])
                    at += 1
                    continue
                if text[at] != "{":
                    break
                self._reader = CallReader(self._names)
                self._started = False
            at = self._reader.feed(text, at)
            self._collect(self._reader, deltas)
            if self._reader.bad:
                self._give_up(self._reader)
                self.failed = True
                break
            if self._reader.done:
                self._reader = None
        return at, deltas

    def take_unclaimed(self) -> str:
        """Return the text taken since the last call of which no call came; what had begun is given up."""
        if self._reader is not None:
            self._give_up(self._reader)
        text, self._unclaimed = "".join(self._unclaimed), []
        self.failed = False
        # Nothing but the end of a list: it belongs to the calls before.
        return "" if self.num_calls and not text.strip(BETWEEN) else text

    def _collect(self, reader: CallReader, deltas: list[CallDelta]) -> None:
        if not reader.begun or (reader.bad and not self._started):
            return
        arguments = reader.take_arguments()
        if not self._started:
            self._started = True
            self.num_calls += 1
            self._unclaimed = []
            deltas.append(CallDelta(self.num_calls - 1, arguments, self._new_id(), reader.name))
        elif arguments:
            deltas.append(CallDelta(self.num_calls - 1, arguments))

    def _give_up(self, reader: CallReader) -> None:
        if not self._started:
            self._unclaimed.append(reader.raw)
        self._reader = None
