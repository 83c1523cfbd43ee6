"""Reading traces: files of three public forms in, sessions out."""

from __future__ import annotations

import csv
import gzip
import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from kernelflume.core.errors import ConfigurationError
from kernelflume.scaler.sim.sessions import Session, Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

_SESSION_BLOCK_TOKENS = 64


def read_trace(path: Path, kind: str) -> tuple[Session, ...]:
    """Return the sessions of a trace in the order of the file.

    Args:
        path: plain or gzipped (``.gz``).
        kind: ``sessions``, ``mooncake`` or ``azure``.

    Raises:
        ConfigurationError: it cannot be read, or is not of that kind; the message names the line.
    """
    try:
        with (
            gzip.open(path, "rt", encoding="utf-8")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8") as lines
        ):
            return tuple(_READERS[kind](lines))
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{path}: not a trace of kind {kind}: {error!r}") from error


def _sessions(lines: Iterable[str]) -> Iterator[Session]:
    """Yield the main thread of each session: sub-agents have contexts of their own, and are not followed."""
    number = 0
    for line in lines:
        turns = tuple(
            Turn(
                max(1, request["in"]),
                request["out"],
                float(request.get("think_time", 0.0)),
                reused_tokens=_reused(request),
            )
            for request in json.loads(line)["requests"]
            if "in" in request and request["out"] > 0
        )
        if turns:
            yield Session(number, turns)
            number += 1


def _reused(request: dict[str, Any]) -> int | None:
    """Return the tokens of the leading blocks that the session has had before, where the trace says."""
    if "hit_blocks" not in request:
        return None
    return min(max(1, int(request["in"])), int(request["hit_blocks"]) * _SESSION_BLOCK_TOKENS)


def _mooncake(lines: Iterable[str]) -> Iterator[Session]:
    rows = (json.loads(line) for line in lines)
    number = 0
    for row in rows:
        if row["output_length"] > 0:
            blocks = tuple(row.get("hash_ids", ()))
            turn = Turn(max(1, row["input_length"]), row["output_length"], blocks=blocks)
            yield Session(number, (turn,), row["timestamp"] / 1e3)
            number += 1


def _azure(lines: Iterable[str]) -> Iterator[Session]:
    first: datetime | None = None

    def seconds(row: dict[str, Any]) -> float:
        nonlocal first
        # Seven digits of a second: one more than Python reads.
        time = datetime.fromisoformat(row["TIMESTAMP"][:26])
        first = first or time
        return (time - first).total_seconds()

    yield from _single(
        (seconds(row), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        for row in csv.DictReader(lines)
    )


def _single(requests: Iterable[tuple[float, int, int]]) -> Iterator[Session]:
    number = 0
    for start_s, context, output in requests:
        if output > 0:
            yield Session(number, (Turn(max(1, context), output),), start_s)
            number += 1


_READERS: dict[str, Callable[[Iterable[str]], Iterator[Session]]] = {
    "sessions": _sessions,
    "mooncake": _mooncake,
    "azure": _azure,
}
