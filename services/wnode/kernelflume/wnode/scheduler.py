"""Continuous batching with chunked prefill: which sequences run, and which rows the next step computes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from kernelflume.wnode.batch import Chunk, StepBatch
from kernelflume.wnode.sequence import Sequence, SequenceEvent, SequenceState

if TYPE_CHECKING:
    from kernelflume.wnode.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Bounds of a step."""

    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A sequence that can never run with the pool as it is."""

    sequence: Sequence
    reason: str


class Scheduler:
    """Owns the waiting queue and the running list; used by the engine's thread alone.

    Running order is order of admission. When the pool is full the youngest running sequence gives way: it
    is restarted and recomputed later, its tokens so far being known.
    """

    def __init__(self, limits: BatchLimits, ledger: Ledger) -> None:
        self._limits = limits
        self._ledger = ledger
        self._ids = count(1)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def submit(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting.append(sequence)

    def find(self, request_id: str) -> Sequence | None:
        """Return the waiting or running sequence of a request, or None."""
        return next(
            (sequence for sequence in (*self.running, *self.waiting) if sequence.request_id == request_id),
            None,
        )

    def remove(self, sequence: Sequence) -> None:
        """End a sequence; the caller frees its pages."""
        if sequence.state is SequenceState.RUNNING:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.apply(SequenceEvent.END)
        self._ledger.forget(sequence.sequence_id)

    def restart(self, sequence: Sequence) -> None:
        """Put a running sequence back at the head of the queue; the caller frees its pages first."""
        self.running.remove(sequence)
        self._ledger.forget(sequence.sequence_id)
        sequence.restart()
        self.waiting.appendleft(sequence)

    def refusals(self) -> list[Refusal]:
        """Return waiting sequences that would not fit an empty pool; none while no node is active."""
        ledger = self._ledger
        if not ledger.page_tokens:
            return []
        capacity = ledger.num_pages
        return [
            Refusal(
                sequence,
                f"the request needs keys and values of {sequence.num_tokens + 1} tokens, but the attention "
                f"nodes hold {capacity * ledger.page_tokens}",
            )
            for sequence in self.waiting
            if _pages(sequence.num_tokens + 1, ledger.page_tokens) > capacity
        ]

    def schedule(self) -> tuple[StepBatch | None, Sequence | None]:
        """Choose the next step's rows.

        Returns:
            The batch, or None when nothing can run now; and a running sequence that must give way because
            the pool is full, or None. The caller frees its pages, restarts it and asks again later.
        """
        ledger = self._ledger
        ledger.begin_step(self.running)
        budget = self._limits.max_num_batched_tokens
        chunks: list[Chunk] = []
        starved: Sequence | None = None
        # Decode rows first: a long prompt must not hold up running streams.
        for sequence in sorted(self.running, key=lambda running: not running.is_decoding):
            if budget == 0:
                break
            num_rows = min(sequence.num_pending, budget)
            writes = ledger.place(sequence, num_rows)
            if writes is None:
                starved = starved or sequence
                continue
            chunks.append(Chunk(sequence, num_rows, writes))
            budget -= num_rows
        while starved is None and budget and self.waiting and len(self.running) < self._limits.max_num_seqs:
            sequence = self.waiting[0]
            if not self._has_room(sequence):
                break
            num_rows = min(sequence.num_pending, budget)
            writes = ledger.place(sequence, num_rows)
            if writes is None:
                break
            self._admit(sequence)
            chunks.append(Chunk(sequence, num_rows, writes))
            budget -= num_rows
        # Without an active node there is nothing to make room on: the running ones wait for the next node.
        makes_room = starved is not None and ledger.page_tokens > 0 and not ledger.is_settling
        victim = self.running[-1] if makes_room else None
        if victim is not None:
            chunks = [chunk for chunk in chunks if chunk.sequence is not victim]
        return (StepBatch.of(chunks) if chunks else None), victim

    def _admit(self, sequence: Sequence) -> None:
        self.waiting.popleft()
        sequence.apply(SequenceEvent.ADMIT)
        sequence.sequence_id = next(self._ids)
        self.running.append(sequence)

    def _has_room(self, sequence: Sequence) -> bool:
        """True when all known tokens fit beside a page of growth for each running sequence."""
        ledger = self._ledger
        if not ledger.page_tokens:
            return False
        needed = _pages(sequence.num_tokens + 1, ledger.page_tokens)
        return needed + len(self.running) <= ledger.num_usable_pages or (
            not self.running and needed <= ledger.num_usable_pages
        )


def _pages(num_tokens: int, page_tokens: int) -> int:
    return -(-num_tokens // page_tokens)
