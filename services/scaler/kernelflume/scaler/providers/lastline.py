"""The last thing that a process said: what a person looks for first when it did not start."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_TAIL_BYTES = 16 * 1024
_MAX_CHARACTERS = 500


def last_line(path: Path, *, start: int = 0) -> str:
    """Return the last line of a log that is not blank, of a JSON line its message; empty if there is none.

    Args:
        path: the log file.
        start: byte from which on the file is looked at.
    """
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(start, size - _TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _message(lines[-1])[:_MAX_CHARACTERS] if lines else ""


def _message(line: str) -> str:
    try:
        record = json.loads(line)
        message = str(record["message"])
        error = str(record.get("error", "")).strip()
    except (ValueError, KeyError, TypeError, AttributeError):
        return line
    return f"{message}: {error.splitlines()[-1]}" if error else message
