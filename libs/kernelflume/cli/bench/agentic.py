"""Traces of agents' sessions (kv-cache-tester): a line of JSON a session, sub-agents included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, model_validator

from kernelflume.cli.bench.tracefile import TraceRow, parse_row
from kernelflume.cli.bench.workload import HashedPrompt, Session, Turn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

_Count = Annotated[int, Field(ge=0, lt=2**53)]
_Seconds = Annotated[float, Field(ge=0)]


class _Request(TraceRow):
    t: _Seconds
    num_input: Annotated[int, Field(alias="in", ge=1, lt=2**31)]
    num_output: Annotated[int, Field(alias="out", ge=0, lt=2**31)]
    think_time: _Seconds = 0.0
    hit_blocks: _Count
    hash_rle: tuple[tuple[_Count, _Count], ...]


class _SubAgent(TraceRow):
    t: _Seconds
    agent_id: str
    requests: tuple[_Request, ...]


class _Entry(TraceRow):
    """A request, or what a sub-agent asked before the session went on; told apart by `requests`."""

    request: _Request | None = None
    agent: _SubAgent | None = None

    @model_validator(mode="before")
    @classmethod
    def _tell_apart(cls, value: object) -> object:
        return {"agent" if isinstance(value, dict) and "requests" in value else "request": value}


class _Line(TraceRow):
    id: str
    block_size: Annotated[int, Field(ge=1, le=2**20)]
    requests: tuple[_Entry, ...]

    @model_validator(mode="after")
    def _blocks_fit(self) -> Self:
        for request in self.all_requests():
            blocks = sum(count for _, count in request.hash_rle)
            if blocks * self.block_size >= request.num_input + self.block_size:
                raise ValueError(
                    f"{blocks} blocks of {self.block_size} in hash_rle for {request.num_input} tokens"
                )
            if request.hit_blocks > blocks:
                raise ValueError(f"hit_blocks {request.hit_blocks} of {blocks} blocks")
        return self

    def all_requests(self) -> Iterator[_Request]:
        for entry in self.requests:
            if entry.request is not None:
                yield entry.request
            elif entry.agent is not None:
                yield from entry.agent.requests


def read_agentic(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[Session]:
    """Yield a session for each line. Hashes are the session's own, shared with its sub-agents.

    A sub-agent is a conversation of its own whose requests stand in line with the session's: the trace tells
    when it began, not which requests it ran beside.

    Raises:
        ConfigurationError: a line is no session; the message names file and line.
    """
    for number, text in lines:
        line = parse_row(_Line, path, number, text)
        turns: list[Turn] = []
        for entry in line.requests:
            if entry.request is not None:
                turns += _turns(line, line.id, 0.0, (entry.request,), len(turns))
            elif entry.agent is not None:
                name = f"{line.id}/{entry.agent.agent_id}"
                turns += _turns(line, name, entry.agent.t, entry.agent.requests, len(turns))
        if turns:
            yield Session(line.id, tuple(turns))


def _turns(
    line: _Line, conversation: str, begin_s: float, requests: Sequence[_Request], before: int
) -> list[Turn]:
    return [
        Turn(
            conversation,
            HashedPrompt(
                line.id,
                request.hash_rle,
                line.block_size,
                request.num_input,
                f"{line.id}/tail-{before + place}",
            ),
            request.num_output,
            offset_s=begin_s + request.t,
            think_s=request.think_time,
            hit_tokens=request.hit_blocks * line.block_size,
        )
        for place, request in enumerate(requests)
    ]
