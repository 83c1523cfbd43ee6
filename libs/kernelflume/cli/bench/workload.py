"""What is to be asked: sessions of turns, each with the rule by which its prompt is made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HashedPrompt:
    """A prompt of which a trace tells the hashes of its blocks: equal hashes are equal tokens."""

    namespace: str
    """Hashes are equal only within one namespace."""
    runs: tuple[tuple[int, int], ...]
    """The blocks' hashes as (first, count), each run counting up."""
    block_tokens: float
    """Tokens of a block; lengths that were divided need not be whole."""
    num_tokens: int
    tail: str
    """Namespace of the tokens after the last block, which no other prompt shares."""


@dataclass(frozen=True, slots=True)
class ExtendingPrompt:
    """The conversation so far, its last answer included, and tokens that are new."""

    num_new: int
    num_shared: int = 0
    """Leading tokens, the same in every session; only a first turn has them."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request."""

    conversation: str
    """Name of the session that the server is told, '' for none."""
    prompt: HashedPrompt | ExtendingPrompt
    num_output: int
    offset_s: float = 0.0
    """When it is due after its session's start, by arrival times."""
    think_s: float = 0.0
    """How long after the end of the turn before it is due, by think times."""
    hit_tokens: int = 0
    """Leading tokens that a cache without an end would hold; of later extending turns the run knows."""


@dataclass(frozen=True, slots=True)
class Session:
    """Turns that follow each other: none begins before the one before has ended."""

    name: str
    turns: tuple[Turn, ...]
    arrival_s: float | None = None
    """When the first turn is due after the trace's start; None where the trace has no such times."""


def num_turns(sessions: tuple[Session, ...]) -> int:
    """Return the number of requests."""
    return sum(len(session.turns) for session in sessions)
