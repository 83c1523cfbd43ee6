"""Continuous batching with chunked prefill: which sequences run, and which rows the next step computes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING

from kernelflume.wnode.batch import Chunk, StepBatch
from kernelflume.wnode.sequence import Sequence, SequenceEvent, SequenceState

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from kernelflume.wnode.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Bounds of a step."""

    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done next. Of ``batch`` and the others nothing is left out: each may come with each."""

    batch: StepBatch | None = None
    """The step; None when nothing can run now."""
    victim: Sequence | None = None
    """A running sequence that must give way because the pool is full. The caller frees its pages, restarts it
    and asks again later."""
    returns: tuple[Sequence, ...] = ()
    """Waiting sequences that must give back what they share, so that another can run."""


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
        self.held: list[Sequence] = []
        """Sequences that stand still for another weight node."""
        self.is_starved = False
        """True when the last step left a running sequence out for want of room."""

    def submit(self, sequence: Sequence) -> None:
        """Queue a new sequence: behind all others, but one that was begun elsewhere before those not begun.

        Its client is in the middle of an answer, and stands still until it runs.
        """
        sequence.sequence_id = self.new_id()
        place = len(self.waiting)
        if sequence.output:
            place = next((place for place, other in enumerate(self.waiting) if not other.output), place)
        self.waiting.insert(place, sequence)

    def new_id(self) -> int:
        """Return a name for attention nodes that was never used."""
        return next(self._ids)

    @property
    def next_waiting(self) -> list[Sequence]:
        """The waiting sequences that there are free places for, in order."""
        return list(islice(self.waiting, max(0, self._limits.max_num_seqs - len(self.running))))

    def find(self, request_id: str) -> Sequence | None:
        """Return the sequence of a request that has not ended, or None."""
        return next((sequence for sequence in self.all if sequence.request_id == request_id), None)

    @property
    def all(self) -> tuple[Sequence, ...]:
        """Every sequence that has not ended."""
        return (*self.running, *self.waiting, *self.held)

    def remove(self, sequence: Sequence) -> None:
        """End a sequence; the caller frees its pages."""
        self._take_out(sequence)
        sequence.apply(SequenceEvent.END)
        self._ledger.forget(sequence.sequence_id)

    def restart(self, sequence: Sequence) -> None:
        """Put a running sequence back at the head of the queue; the caller frees its pages first."""
        self.running.remove(sequence)
        self._ledger.forget(sequence.sequence_id)
        sequence.restart()
        sequence.sequence_id = self.new_id()
        self.waiting.appendleft(sequence)

    def hold(self, sequence: Sequence) -> None:
        """Let a running or waiting sequence stand still."""
        self._take_out(sequence)
        sequence.apply(SequenceEvent.HOLD)
        self.held.append(sequence)

    def go_on(self, sequence: Sequence) -> None:
        """Run a held sequence again: at once, or first in the queue where nothing of it is computed."""
        self.held.remove(sequence)
        if sequence.num_computed:
            sequence.apply(SequenceEvent.GO_ON)
            self.running.append(sequence)
        else:
            sequence.apply(SequenceEvent.RESTART)
            self.waiting.appendleft(sequence)

    def _take_out(self, sequence: Sequence) -> None:
        match sequence.state:
            case SequenceState.RUNNING:
                self.running.remove(sequence)
            case SequenceState.WAITING:
                self.waiting.remove(sequence)
            case SequenceState.HELD:
                self.held.remove(sequence)
            case SequenceState.ENDED:
                return

    def give_back(self, sequence: Sequence) -> None:
        """Let a waiting sequence begin with nothing again; the caller frees what it shares first."""
        self._ledger.forget(sequence.sequence_id)
        sequence.give_back()
        sequence.sequence_id = self.new_id()

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

    def has_pool_alone(self, sequence: Sequence) -> bool:
        """True when no page is held but by a sequence: waiting would bring it no more room.

        Other weight nodes' sequences, and those that stand still or end here, free theirs in time.
        """
        ledger = self._ledger
        own = _pages(sequence.num_computed, ledger.page_tokens) if ledger.page_tokens else 0
        return ledger.num_usable_pages + own >= ledger.num_pages

    def schedule(self, is_ready: Callable[[Sequence], bool] = lambda _: True) -> Plan:
        """Choose the next step's rows, and who makes room where there is none.

        Args:
            is_ready: tells whether a waiting sequence may run; none overtakes another.
        """
        ledger = self._ledger
        ledger.begin_step(self.running)
        budget = self._limits.max_num_batched_tokens
        chunks: list[Chunk] = []
        starved: Sequence | None = None
        # Decode rows first: a long prompt must not hold up running streams.
        decoding = [sequence.is_decoding for sequence in self.running]
        order = self.running if all(decoding) else _first(self.running, decoding)
        for sequence in order:
            if budget == 0:
                break
            num_rows = min(sequence.num_pending, budget)
            writes = ledger.place(sequence, num_rows)
            if writes is None:
                starved = starved or sequence
                continue
            chunks.append(Chunk.of(sequence, num_rows, writes))
            budget -= num_rows
        self.is_starved = lacks_room = starved is not None
        while not lacks_room and budget and self.waiting and len(self.running) < self._limits.max_num_seqs:
            sequence = self.waiting[0]
            if not is_ready(sequence):
                break
            num_rows = min(sequence.num_pending, budget)
            writes = ledger.place(sequence, num_rows) if self.has_room(sequence) else None
            if writes is None:
                lacks_room = not self.running
                break
            self._admit(sequence)
            chunks.append(Chunk.of(sequence, num_rows, writes))
            budget -= num_rows
        # Without an active node there is nothing to make room on: the running ones wait for the next node.
        if not lacks_room or not ledger.page_tokens or ledger.is_settling:
            return Plan(StepBatch.of(chunks) if chunks else None)
        # What nobody computes with goes first; of what waits the first would have to find it again.
        returns = tuple(
            sequence
            for place, sequence in enumerate(self.waiting)
            if sequence.num_shared and (starved or place)
        )
        victim = self.running[-1] if starved is not None and not returns else None
        chunks = [chunk for chunk in chunks if chunk.sequence is not victim]
        return Plan(StepBatch.of(chunks) if chunks else None, victim, returns)

    def schedule_behind(self, batch: StepBatch, leaving: Container[int]) -> StepBatch | None:
        """Choose the rows of the step behind one that is under way and decodes every running sequence.

        Args:
            batch: the step under way.
            leaving: ids of sequences that end with the token it chooses.

        Returns:
            One row for each other sequence, or None when there is none, or no room for one.
        """
        ledger = self._ledger
        ledger.begin_step(self.running)
        under_way = {chunk.sequence.sequence_id: chunk for chunk in batch.chunks}
        chunks: list[Chunk] = []
        for sequence in self.running:
            if sequence.sequence_id in leaving:
                continue
            chunk = under_way[sequence.sequence_id]
            writes = ledger.place_next(chunk)
            if writes is None:
                return None
            chunks.append(chunk.next(writes))
        return StepBatch.of(chunks) if chunks else None

    def could_admit(self, is_ready: Callable[[Sequence], bool] = lambda _: True) -> bool:
        """Tell whether the first waiting sequence may begin, as far as is known while a step is under way.

        Args:
            is_ready: as for ``schedule``.
        """
        if not self.waiting or len(self.running) >= self._limits.max_num_seqs:
            return False
        self._ledger.begin_step(self.running)
        return is_ready(self.waiting[0]) and self.has_room(self.waiting[0])

    def _admit(self, sequence: Sequence) -> None:
        self.waiting.popleft()
        sequence.admit()
        self.running.append(sequence)

    def has_room(self, sequence: Sequence) -> bool:
        """True when all known tokens fit beside a page of growth for each running sequence."""
        ledger = self._ledger
        if not ledger.page_tokens:
            return False
        if not ledger.can_go_on(sequence):
            return False
        # A last block that is shared and not full counts as needed: it is copied.
        needed = _pages(sequence.num_tokens + 1, ledger.page_tokens)
        needed -= sequence.num_shared // ledger.page_tokens
        return needed + len(self.running) <= ledger.num_usable_pages or (
            not self.running and needed <= ledger.num_usable_pages
        )


def _first(sequences: Iterable[Sequence], goes_first: Iterable[bool]) -> list[Sequence]:
    """Return those that go first, then the others, each in order."""
    marked = list(zip(sequences, goes_first, strict=True))
    return [sequence for wanted in (True, False) for sequence, first in marked if first is wanted]


def _pages(num_tokens: int, page_tokens: int) -> int:
    return -(-num_tokens // page_tokens)
