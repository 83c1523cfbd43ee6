"""May the next step be launched while one is under way, before its tokens are known? Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from kernelflume.wnode.batch import StepBatch


class Obstacle(StrEnum):
    """Why the step under way must be settled first."""

    NEWS = "news"
    """Commands, or what nodes reported, are to be taken in between two steps."""
    PROMPTS = "prompts"
    """Some running sequence has no row in the step under way: it has a prompt to compute, or no room."""
    ADMISSION = "admission"
    """A waiting sequence can begin."""
    HOST = "host"
    """The host chooses some row's token."""
    HAND_OVER = "hand_over"
    """Some sequence stands still behind its next token, for another weight node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What is known while a step is under way."""

    running: Collection[int]
    """Ids of the running sequences."""
    has_news: bool
    could_admit: bool


def obstacle(batch: StepBatch, outlook: Outlook) -> Obstacle | None:
    """Return what keeps the next step from being launched behind ``batch``, or None.

    ``batch`` is of decode rows; some of its sequences may have ended since it was launched.
    """
    if outlook.has_news:
        return Obstacle.NEWS
    if not {chunk.sequence.sequence_id for chunk in batch.chunks}.issuperset(outlook.running):
        return Obstacle.PROMPTS
    if not all(chunk.sequence.is_simple for chunk in batch.chunks):
        return Obstacle.HOST
    if any(chunk.sequence.hands_over for chunk in batch.chunks):
        return Obstacle.HAND_OVER
    return Obstacle.ADMISSION if outlook.could_admit else None


def ending(batch: StepBatch, *, max_model_len: int) -> frozenset[int]:
    """Return the ids of the sequences that end with the token that ``batch`` chooses, whichever it is."""
    return frozenset(
        sequence.sequence_id
        for chunk in batch.chunks
        for sequence in (chunk.sequence,)
        if chunk.end + 1 >= min(max_model_len, len(sequence.prompt) + sequence.sampling.max_tokens)
    )
