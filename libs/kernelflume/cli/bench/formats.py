"""Which format a trace file has, and the reader for it."""

from __future__ import annotations

import itertools
import json
from enum import StrEnum
from typing import TYPE_CHECKING

from kernelflume.cli.bench.agentic import read_agentic
from kernelflume.cli.bench.azure import COLUMNS, read_azure
from kernelflume.cli.bench.mooncake import read_mooncake
from kernelflume.cli.bench.tracefile import fault, trace_lines
from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from kernelflume.cli.bench.workload import Session


class TraceFormat(StrEnum):
    """What a trace file holds."""

    MOONCAKE = "mooncake"
    AGENTIC = "agentic"
    AZURE = "azure"


_READERS: dict[TraceFormat, Callable[[Path, Iterable[tuple[int, str]]], Iterator[Session]]] = {
    TraceFormat.MOONCAKE: read_mooncake,
    TraceFormat.AGENTIC: read_agentic,
    TraceFormat.AZURE: read_azure,
}


def read_trace(path: Path, trace_format: TraceFormat | None = None) -> tuple[TraceFormat, Iterator[Session]]:
    """Return the format of a file, told by its first line if none is given, and its sessions, read as needed.

    Raises:
        ConfigurationError: the file cannot be read, or is of no known format; while the sessions are taken, a
            line is damaged.
    """
    lines = trace_lines(path)
    first = next(lines, None)
    if first is None:
        raise ConfigurationError(f"{path}: the trace is empty")
    chosen = trace_format or _format_of(path, *first)
    return chosen, _READERS[chosen](path, itertools.chain([first], lines))


def _format_of(path: Path, number: int, text: str) -> TraceFormat:
    if all(column in text for column in COLUMNS):
        return TraceFormat.AZURE
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if isinstance(fields, dict):
        if "hash_ids" in fields:
            return TraceFormat.MOONCAKE
        if "requests" in fields:
            return TraceFormat.AGENTIC
    raise fault(path, number, f"of no known format ({', '.join(TraceFormat)})")
