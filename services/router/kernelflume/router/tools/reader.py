"""Reads one call, ``{"name": ..., "arguments": {...}}``, while its text comes. Pure."""

from __future__ import annotations

import json
from enum import Enum, auto
from typing import TYPE_CHECKING

from kernelflume.router.tools.value import SPACE, ValueEnd

if TYPE_CHECKING:
    from collections.abc import Callable

_ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
_KEYS = frozenset({"id", "name", "type"}) | _ARGUMENT_KEYS
"""All that models write in a call; another key is known at once to be of something else."""
_NO_ARGUMENTS = "{}"


class _State(Enum):
    OPEN = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    NEXT = auto()
    DONE = auto()
    BAD = auto()


class CallReader:
    """One call. Arguments are given as they come once the name is known, before that they are held back.

    Arguments are an object, or a string that holds one, as some models write them.
    """

    def __init__(self, names: frozenset[str]) -> None:
        """Begin a call.

        Args:
            names: functions that exist; an object with another name is no call.
        """
        self._names = names
        self._state = _State.OPEN
        self._value = ValueEnd()
        self._raw: list[str] = []
        self._key: str | None = None
        self._held: list[str] = []
        self._arguments: list[str] = []
        self._has_arguments = False
        self.name: str | None = None
        """Known once the text had it."""
        self._steps: dict[_State, Callable[[str, int], int]] = {
            _State.OPEN: self._open,
            _State.KEY: self._read_key,
            _State.COLON: self._read_colon,
            _State.VALUE: self._read_value,
            _State.NEXT: self._read_next,
        }

    @property
    def done(self) -> bool:
        """True once the object is closed and is a call."""
        return self._state is _State.DONE

    @property
    def bad(self) -> bool:
        """True once it is clear that this is no call, or a broken one."""
        return self._state is _State.BAD

    @property
    def begun(self) -> bool:
        """True once this is sure to be a call: its name is known, and its arguments have begun."""
        return self.name is not None and self._has_arguments

    @property
    def raw(self) -> str:
        """All text taken so far."""
        return "".join(self._raw)

    def feed(self, text: str, start: int) -> int:
        """Take ``text`` from ``start`` on; return the index after what was taken."""
        at = start
        while at < len(text) and self._state in self._steps:
            at = self._steps[self._state](text, at)
        self._raw.append(text[start:at])
        return at

    def take_arguments(self) -> str:
        """Return the arguments' text that came since the last take."""
        text, self._arguments = "".join(self._arguments), []
        return text

    def _open(self, text: str, at: int) -> int:
        return self._expect(text, at, {"{": _State.KEY})

    def _read_colon(self, text: str, at: int) -> int:
        return self._expect(text, at, {":": _State.VALUE})

    def _read_next(self, text: str, at: int) -> int:
        return self._expect(text, at, {",": _State.KEY, "}": _State.DONE})

    def _expect(self, text: str, at: int, states: dict[str, _State]) -> int:
        if text[at] not in SPACE:
            self._state = states.get(text[at], _State.BAD)
            if self._state is _State.DONE:
                self._finish()
        return at + 1

    def _finish(self) -> None:
        if self.name is None:
            self._state = _State.BAD
        elif not self._has_arguments:
            self._has_arguments = True
            self._arguments.append(_NO_ARGUMENTS)

    def _read_key(self, text: str, at: int) -> int:
        if not self._held and text[at] != '"':
            if text[at] not in SPACE:
                self._state = _State.BAD
            return at + 1
        end = self._hold(text, at)
        if self._value.complete:
            self._key = self._end_string()
            self._state = _State.COLON if self._key in _KEYS else _State.BAD
            if self._key in _ARGUMENT_KEYS and self._has_arguments:
                self._state = _State.BAD
        return end

    def _read_value(self, text: str, at: int) -> int:
        is_arguments = self._key in _ARGUMENT_KEYS
        if not self._held and not self._has_arguments_open:
            if text[at] in SPACE:
                return at + 1
            if is_arguments and text[at] == "{":
                self._has_arguments = True
        if is_arguments and self._has_arguments:
            return self._stream_arguments(text, at)
        end = self._hold(text, at)
        if self._value.complete:
            self._end_value(is_arguments=is_arguments)
        return end

    @property
    def _has_arguments_open(self) -> bool:
        return self._has_arguments and self._key in _ARGUMENT_KEYS

    def _stream_arguments(self, text: str, at: int) -> int:
        end = self._value.feed(text, at)
        self._arguments.append(text[at:end])
        if self._value.complete:
            self._value = ValueEnd()
            self._state = _State.NEXT
            self._key = None
        return end

    def _end_value(self, *, is_arguments: bool) -> None:
        self._state = _State.NEXT
        if self._key == "name":
            self.name = self._end_string()
            if self.name not in self._names:
                self.name = None
                self._state = _State.BAD
        elif is_arguments:
            raw = "".join(self._held).strip()
            inner = _NO_ARGUMENTS if raw == "null" else self._end_string()
            if inner is None or not inner.lstrip().startswith("{"):
                self._state = _State.BAD
            else:
                self._has_arguments = True
                self._arguments.append(inner)
        self._held = []
        self._value = ValueEnd()
        self._key = None

    def _hold(self, text: str, at: int) -> int:
        end = self._value.feed(text, at)
        self._held.append(text[at:end])
        return end

    def _end_string(self) -> str | None:
        """Return the text of the string that was held, or None if it is none."""
        raw = "".join(self._held)
        self._held = []
        self._value = ValueEnd()
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, str) else None
