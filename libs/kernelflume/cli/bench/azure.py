"""Azure's public traces: a CSV row a request, with arrival and lengths; nothing tells its content."""

from __future__ import annotations

import csv
from datetime import datetime
from typing import TYPE_CHECKING

from kernelflume.cli.bench.tracefile import fault
from kernelflume.cli.bench.workload import HashedPrompt, Session, Turn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_azure(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[Session]:
    """Yield a session of one turn for each row after the heading; no two prompts share a token block.

    Raises:
        ConfigurationError: a row is none; the message names file and line.
    """
    places: list[int] | None = None
    first: datetime | None = None
    for number, text in lines:
        cells = _cells(path, number, text)
        if places is None:
            places = _places(path, number, cells)
            continue
        if len(cells) <= max(places):
            raise fault(path, number, f"{len(cells)} columns")
        at = _time(path, number, cells[places[0]])
        num_input = _count(path, number, COLUMNS[1], cells[places[1]])
        num_output = _count(path, number, COLUMNS[2], cells[places[2]])
        first = first or at
        name = f"line-{number}"
        turn = Turn("", HashedPrompt("", (), 1, max(1, num_input), name), num_output)
        yield Session(name, (turn,), arrival_s=max(0.0, (at - first).total_seconds()))


def _cells(path: Path, number: int, text: str) -> list[str]:
    try:
        return next(csv.reader([text]))
    except csv.Error as error:
        # The reader's own words tell programmers how to open files.
        raise fault(path, number, "no line of CSV: a carriage return or a very long field in it") from error


def _places(path: Path, number: int, cells: list[str]) -> list[int]:
    missing = [name for name in COLUMNS if name not in cells]
    if missing:
        raise fault(path, number, f"no column {missing[0]}")
    return [cells.index(name) for name in COLUMNS]


def _time(path: Path, number: int, text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise fault(path, number, f"TIMESTAMP: {error}") from error
    return at.replace(tzinfo=None)


def _count(path: Path, number: int, column: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise fault(path, number, f"{column}: {text!r} is no number of tokens")
    return int(text)
