"""What a service's log file says of its end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_TAIL_BYTES = 64 * 1024
_GRAVE = frozenset({"error", "critical"})


def last_error(path: Path) -> str | None:
    """Return the last line of a log that tells of an error, else its last line, else None.

    A line is a JSON object of ``runtime.logging``, or plain text from below it: an interpreter that could
    not start, or another program.
    """
    lines = _tail(path)
    for line in reversed(lines):
        fields = _fields(line)
        if fields.get("level") in _GRAVE:
            return _sentence(fields)
    return _sentence(_fields(lines[-1])) or lines[-1] if lines else None


def _tail(path: Path) -> list[str]:
    try:
        with path.open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - _TAIL_BYTES))
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


def _sentence(fields: dict[str, Any]) -> str:
    """The message, with the last line of its traceback if it has one."""
    message = str(fields.get("message", ""))
    cause = str(fields.get("error", "")).strip().splitlines()
    return f"{message}: {cause[-1]}" if message and cause else message
