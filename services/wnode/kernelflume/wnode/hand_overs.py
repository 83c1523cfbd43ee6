"""Sequences that stand still between two tokens, so that another weight node goes on with them (ADR 18)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelflume.wnode.hand_over_counts import HandOverCounts
from kernelflume.wnode.sequence import SequenceState

if TYPE_CHECKING:
    from kernelflume.runtime.clock import Clock
    from kernelflume.wnode.prefix_cache import PrefixCache
    from kernelflume.wnode.scheduler import Scheduler
    from kernelflume.wnode.sequence import Sequence

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Held:
    sequence: Sequence
    number: int
    """Of its latest names: once these are known to the attention nodes others find its blocks."""
    deadline_s: float
    is_told: bool = False


class HandOvers:
    """Holds sequences, with their references, until they are released, go on, or time is up.

    Owned by the step loop's thread. A held sequence is in no batch and in no queue.
    """

    def __init__(
        self, scheduler: Scheduler, prefix_cache: PrefixCache, clock: Clock, *, timeout_s: float
    ) -> None:
        """Begin with none; each is held for at most ``timeout_s``."""
        self._scheduler = scheduler
        self._prefix_cache = prefix_cache
        self._clock = clock
        self._timeout_s = timeout_s
        self._held: dict[str, _Held] = {}
        self.counts = HandOverCounts()

    @property
    def is_expecting(self) -> bool:
        """True while attention nodes are about to say that they know a sequence's blocks."""
        return any(not held.is_told for held in self._held.values())

    @property
    def is_due(self) -> bool:
        """True when a held sequence is about to be told of, or was held for too long."""
        return self.is_expecting or bool(self._late())

    def order(self, sequence: Sequence) -> None:
        """Hold a sequence as soon as it stands between two tokens.

        One that waits has nothing yet that would be lost, and stands still at once. One that is held already
        is not to be held again when it goes on.
        """
        if sequence.state is SequenceState.WAITING:
            self._prefix_cache.abandon(sequence)
            self.hold(sequence)
        elif sequence.state is SequenceState.RUNNING and sequence.is_decoding:
            self.hold(sequence)
        elif sequence.state is SequenceState.RUNNING:
            sequence.hands_over = True

    def hold(self, sequence: Sequence) -> None:
        """Take a sequence out of its batch or queue, and have all of its blocks named."""
        sequence.hands_over = False
        self._scheduler.hold(sequence)
        number = self._prefix_cache.name_all(sequence)
        self._held[sequence.request_id] = _Held(sequence, number, self._clock.now() + self._timeout_s)
        self.counts.num_held += 1

    def go_on(self, sequence: Sequence) -> None:
        """Let a held sequence run again, from where it is."""
        if self._held.pop(sequence.request_id, None) is not None:
            self._scheduler.go_on(sequence)
            self.counts.num_gone_on += 1

    def forget(self, sequence: Sequence) -> None:
        """Take note that a sequence ends."""
        self._held.pop(sequence.request_id, None)

    def take_named(self) -> list[Sequence]:
        """Return the sequences that others may share from now on."""
        named = [
            held
            for held in self._held.values()
            if not held.is_told and self._prefix_cache.has_settled(held.number)
        ]
        for held in named:
            held.is_told = True
        return [held.sequence for held in named]

    def expired(self) -> list[Sequence]:
        """Return the sequences that were held for too long; the caller ends them."""
        late = self._late()
        self.counts.num_expired += len(late)
        return late

    def _late(self) -> list[Sequence]:
        now = self._clock.now()
        return [held.sequence for held in self._held.values() if held.deadline_s <= now]

    def count_taken(self, sequence: Sequence) -> None:
        """Count a sequence that was handed to this node, at its first token here."""
        self.counts.num_taken += 1
        self.counts.num_recomputed_tokens += max(0, sequence.num_handed - sequence.num_shared)
