"""Mooncake's traces: a line of JSON a request, with its arrival, lengths and the hashes of its blocks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from kernelflume.cli.bench.tracefile import TraceRow, fault, parse_row
from kernelflume.cli.bench.workload import HashedPrompt, Session, Turn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

BLOCK_TOKENS = 512


class _Row(TraceRow):
    timestamp: Annotated[float, Field(ge=0)]
    """Milliseconds."""
    input_length: Annotated[int, Field(ge=1)]
    output_length: Annotated[int, Field(ge=0)]
    hash_ids: tuple[Annotated[int, Field(ge=0, lt=2**63)], ...]


def read_mooncake(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[Session]:
    """Yield a session of one turn for each line. Hashes are global, of blocks of 512 tokens.

    Raises:
        ConfigurationError: a line is no row; the message names file and line.
    """
    seen: set[int] = set()
    for number, text in lines:
        row = parse_row(_Row, path, number, text)
        needed = math.ceil(row.input_length / BLOCK_TOKENS)
        if len(row.hash_ids) != needed:
            raise fault(
                path,
                number,
                f"{len(row.hash_ids)} hash_ids; {row.input_length} tokens are {needed} blocks of 512",
            )
        hit = 0
        for key in row.hash_ids:
            if key not in seen:
                break
            hit += 1
        seen.update(row.hash_ids)
        prompt = HashedPrompt("", run_lengths(row.hash_ids), BLOCK_TOKENS, row.input_length, f"line-{number}")
        turn = Turn("", prompt, row.output_length, hit_tokens=hit * BLOCK_TOKENS)
        yield Session(f"line-{number}", (turn,), arrival_s=row.timestamp / 1000)


def run_lengths(keys: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return hashes as runs that count up by one: most of a trace's do."""
    runs: list[tuple[int, int]] = []
    for key in keys:
        if runs and key == runs[-1][0] + runs[-1][1]:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((key, 1))
    return tuple(runs)
