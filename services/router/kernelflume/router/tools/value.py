"""Where a JSON value ends, found while its text comes. Pure."""

from __future__ import annotations

import re

SPACE = " \t\r\n"

_PLAIN = re.compile(r'[^"\\]*')
_INERT = re.compile(r'[^"{}\[\]]*')
_SCALAR = re.compile(r"[^,}\]\s]*")


class ValueEnd:
    """Follows the structure of one value and does not check more of its grammar than that."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._begun = False
        self._scalar = False
        self.complete = False

    def feed(self, text: str, start: int) -> int:
        """Read on in ``text`` from ``start``, which holds the value's first character at the first call.

        Returns:
            The index after the last character that belongs to the value.
        """
        at = start
        while at < len(text) and not self.complete:
            if self._in_string:
                at = self._read_string(text, at)
            elif self._scalar:
                at = self._read_scalar(text, at)
            else:
                at = self._read_structure(text, at)
        return at

    def _read_string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        match = _PLAIN.match(text, at)
        at = match.end() if match else at
        if at == len(text):
            return at
        if text[at] == "\\":
            self._escaped = True
        else:
            self._in_string = False
            self.complete = self._depth == 0
        return at + 1

    def _read_scalar(self, text: str, at: int) -> int:
        match = _SCALAR.match(text, at)
        at = match.end() if match else at
        self.complete = at < len(text)
        return at

    def _read_structure(self, text: str, at: int) -> int:
        if self._begun:
            match = _INERT.match(text, at)
            at = match.end() if match else at
            if at == len(text):
                return at
        self._begun = True
        match text[at]:
            case '"':
                self._in_string = True
            case "{" | "[":
                self._depth += 1
            case "}" | "]":
                self._depth -= 1
                self.complete = self._depth <= 0
            case _:
                self._scalar = True
                return at
        return at + 1
