"""What a process's log file says of its end: the first thing a person looks for when it did not start.

A line is a JSON object of ``runtime.logging``, or plain text from below it: an interpreter that could not
start, or another program.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_TAIL_BYTES = 64 * 1024
_MAX_CHARACTERS = 500
_GRAVE = frozenset({"error", "critical"})


def last_line(path: Path, *, start: int = 0) -> str | None:
    """Return what the last line of a log that is not blank says, at most 500 characters, or None.

    Args:
        path: the log file.
        start: byte from which on the file is looked at.
    """
    lines = _tail(path, start)
    return _said(lines[-1])[:_MAX_CHARACTERS] if lines else None


def last_error(path: Path) -> str | None:
    """Return what the last line of a log that tells of an error says, else its last line, else None."""
    lines = _tail(path)
    for line in reversed(lines):
        if _fields(line).get("level") in _GRAVE:
            return _said(line)
    return _said(lines[-1]) if lines else None


def _tail(path: Path, start: int = 0) -> list[str]:
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(start, size - _TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except OSError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]


def _fields(line: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _said(line: str) -> str:
    """Return the message, with the last line of its traceback if it has one; plain text as it is."""
    fields = _fields(line)
    message = str(fields.get("message", ""))
    if not message:
        return line
    cause = str(fields.get("error", "")).strip().splitlines()
    return f"{message}: {cause[-1]}" if cause else message
