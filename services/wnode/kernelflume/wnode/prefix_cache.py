"""What the step loop does with blocks that outlive their sequences (ADR 17): look up, name, give back."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from kernelflume.core.blocks import WORTH_TOKENS
from kernelflume.core.ranges import SequenceRoute
from kernelflume.transport.wire import Found, Shared
from kernelflume.wnode.leads import MAX_FOLLOWED, find_lead
from kernelflume.wnode.lookups import Lookups
from kernelflume.wnode.messages import RoutesChanged
from kernelflume.wnode.named_blocks import packed
from kernelflume.wnode.publisher import MAX_OPEN_MOVING, Publisher
from kernelflume.wnode.runs import runs_of
from kernelflume.wnode.sequence import LookupPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kernelflume.runtime.clock import Clock
    from kernelflume.wnode.leads import Lead
    from kernelflume.wnode.ledger import Ledger
    from kernelflume.wnode.links import LinkTable
    from kernelflume.wnode.messages import Event
    from kernelflume.wnode.scheduler import Scheduler
    from kernelflume.wnode.sequence import Sequence

ANSWER_TIMEOUT_S = 2.0
"""A node answers between two layers of a step: one that does not by then will be given up, by others."""
MAX_LOOKUPS = 16
"""Lookups at once: beyond, a burst of requests would hold shared pages long before it runs."""
HOLD_S = 1.0
"""How long a sequence that waits for room keeps what it shares: its pages may be what others wait for."""
_MAX_KEYED_TOKENS = 8192
"""Tokens whose blocks get names in a turn while others run: some two milliseconds."""
_PAUSE_S = 0.25
_MAX_PAUSE_S = 4.0
"""Bounds of the time before it looks up again, which doubles. Weight nodes that wait for each other's pages
must not come back at once, so each sequence's time differs."""


class PrefixCache:
    """Lookups of what waits and names of what was computed. Owned by the step loop's thread."""

    def __init__(
        self,
        *,
        links: LinkTable,
        ledger: Ledger,
        scheduler: Scheduler,
        clock: Clock,
        send: Callable[[Event], None],
        enabled: bool,
    ) -> None:
        """Begin with nothing under way.

        Args:
            links: the way to attention nodes.
            ledger: says which of them are active.
            scheduler: owns the sequences.
            clock: for deadlines.
            send: tells the shell of routes.
            enabled: whether sequences share and name blocks; their pages are freed in either case.
        """
        self._links = links
        self._ledger = ledger
        self._scheduler = scheduler
        self._clock = clock
        self._send = send
        self._enabled = enabled
        self._lookups = Lookups(links, clock, scheduler.new_id, timeout_s=ANSWER_TIMEOUT_S)
        self._publisher = Publisher(links, clock, timeout_s=ANSWER_TIMEOUT_S)

    @property
    def is_expecting(self) -> bool:
        """True while a waiting sequence could run soon after something arrives."""
        return bool(self._lookups) or not all(map(self.is_ready, self._scheduler.next_waiting))

    @property
    def is_due(self) -> bool:
        """True when ``advance`` has something to do, or soon will: it is called between two steps alone."""
        now = self._clock.now()
        return (
            bool(self._lookups)
            or any(link.block_news for link in self._links.all())
            or self._publisher.is_late(now)
            or any(
                self._is_in_vain(sequence, now) or self._looks_again(sequence)
                for sequence in self._scheduler.waiting
            )
            or any(self._is_due(sequence, now) for sequence in self._scheduler.next_waiting)
        )

    def looks_up(self, sequence: Sequence) -> bool:
        """Tell whether a sequence shares what it finds in the pool."""
        if sequence.handed.ranges:
            return True
        # Log probabilities of a prompt's tokens come with its computation.
        return self._enabled and (sequence.sampling.prompt_logprobs is None or bool(sequence.output))

    def is_ready(self, sequence: Sequence) -> bool:
        """Tell whether a waiting sequence has nothing more to look up."""
        has_looked_up = sequence.lookup is LookupPhase.DONE and sequence.lead is None
        return has_looked_up or not self.looks_up(sequence)

    def enter(self, sequence: Sequence) -> None:
        """Take note of a new sequence: what was named before it came is found."""
        sequence.lookup_after = self._publisher.last_number

    def advance(self) -> None:
        """Take in what nodes said, and begin the lookups that are due."""
        for link in self._links.all():
            news, link.block_news = link.block_news, []
            for notice in news:
                if isinstance(notice, Found):
                    self._lookups.take_found(link, notice)
                elif isinstance(notice, Shared):
                    self._lookups.take_shared(link, notice)
                else:
                    self._publisher.take_published(link, notice)
        self._publisher.advance()
        for sequence in self._lookups.advance():
            self._take_found(sequence)
        self._look_again()
        now = self._clock.now()
        self.give_back([sequence for sequence in self._scheduler.waiting if self._is_in_vain(sequence, now)])
        self._begin_due(now)

    def name(self, sequence: Sequence) -> None:
        """Name what a running sequence has computed, as far as it fills blocks."""
        sequence.is_prompt_named = True
        page_tokens = self._links.page_tokens
        if self._enabled and page_tokens:  # 0 where every node is lost
            keys = sequence.block_keys(sequence.num_computed, page_tokens).keys
            self._publisher.publish(sequence, keys, page_tokens)

    def name_all(self, sequence: Sequence) -> int:
        """Name all that a sequence has computed, its last block too, for a weight node that goes on with it.

        Returns:
            What ``has_settled`` is to be asked for.
        """
        page_tokens = self._links.page_tokens
        if sequence.route.ranges and page_tokens:
            keys = sequence.block_keys(sequence.num_computed, page_tokens)
            self._publisher.publish(sequence, keys.keys, page_tokens, most=MAX_OPEN_MOVING)
            if sequence.num_computed % page_tokens and keys.num_tokens == sequence.num_computed:
                self._publisher.publish_rest(sequence, keys.key(), page_tokens)
                sequence.copies_last = True
        return self._publisher.last_number

    def has_settled(self, number: int) -> bool:
        """Tell whether the names up to this number are known to the attention nodes."""
        return self._publisher.has_settled(number)

    def abandon(self, sequence: Sequence) -> None:
        """Let a waiting sequence hold nothing and look for nothing."""
        self.release(sequence)
        self._scheduler.give_back(sequence)

    def release(self, sequence: Sequence) -> None:
        """Free what a sequence holds that ends or restarts, once what it computed is named."""
        self._lookups.cancel(sequence)
        if not sequence.route.ranges:
            return
        self.name(sequence)
        self._publisher.release(sequence)
        self._send(RoutesChanged({}, (sequence.sequence_id,)))
        sequence.lookup_after = self._publisher.last_number

    def give_back(self, sequences: Iterable[Sequence]) -> None:
        """Let waiting sequences free what they share, and look up again later."""
        for sequence in sequences:
            self.release(sequence)
            self._scheduler.give_back(sequence)
            self.pause(sequence)

    def pause(self, sequence: Sequence) -> None:
        """Let a sequence that made room look up again when there is room for all of it, or after a while."""
        pause_s = min(_MAX_PAUSE_S, _PAUSE_S * 2**sequence.num_pauses)
        spread = (sequence.random_key * 0x9E3779B97F4A7C15 % 2**64) / 2**64
        sequence.lookup_after_s = self._clock.now() + pause_s * (0.5 + spread)
        sequence.num_pauses = min(sequence.num_pauses + 1, 8)

    def lose(self, node_id: str) -> None:
        """Use nothing more of a node: what waits and shares pages there looks up again."""
        self._lookups.lose(node_id)
        for sequence in (*self._scheduler.waiting, *self._scheduler.held):
            if node_id in sequence.route.node_ids:
                self.abandon(sequence)

    def forget_link(self, node_name: str) -> None:
        """Expect no answer over a link that was closed."""
        self._publisher.forget(node_name)

    def _take_found(self, sequence: Sequence) -> None:
        sequence.lookup = LookupPhase.DONE
        lead = sequence.lead
        if lead is not None and lead.num_tokens < sequence.num_shared + WORTH_TOKENS:
            sequence.lead = None
        if sequence.num_shared:
            sequence.gives_back_at_s = self._clock.now() + HOLD_S
            self._send(RoutesChanged({sequence.sequence_id: sequence.route}, ()))

    def _look_again(self) -> None:
        """Let those look up again that waited for what is named now, or does not come any more."""
        for sequence in filter(self._looks_again, self._scheduler.waiting):
            sequence.num_followed += 1
            self.abandon(sequence)
            sequence.lookup_after = self._publisher.last_number

    @staticmethod
    def _looks_again(sequence: Sequence) -> bool:
        lead = sequence.lead
        has_looked_up = sequence.lookup is LookupPhase.DONE
        return lead is not None and has_looked_up and not lead.sequence.is_on_its_way

    def _find_lead(self, sequence: Sequence) -> Lead | None:
        """Return one ahead that is about to compute what a sequence needs, or has and is not found yet."""
        if not self._enabled or sequence.num_followed >= MAX_FOLLOWED:
            return None
        ahead = takewhile(lambda other: other is not sequence, self._scheduler.waiting)
        new = self._publisher.open_sequences
        return find_lead(
            sequence,
            (
                other
                for other in (*self._scheduler.running, *ahead)
                if other.is_on_its_way or other.sequence_id in new
            ),
        )

    def _is_in_vain(self, sequence: Sequence, now: float) -> bool:
        """Tell whether a sequence has long kept what it shares, and does not run for want of room."""
        is_late = sequence.num_shared > 0 and sequence.gives_back_at_s <= now
        return is_late and not self._scheduler.has_room(sequence)

    def _begin_due(self, now: float) -> None:
        """Begin the lookups that are due, as far as a turn has time for."""
        page_tokens = self._ledger.page_tokens
        if not page_tokens or self._scheduler.is_starved:
            return
        budget = _MAX_KEYED_TOKENS if self._scheduler.running else 1 << 30
        for sequence in self._scheduler.next_waiting:
            if budget <= 0 or len(self._lookups) >= MAX_LOOKUPS:
                return
            if self._is_due(sequence, now):
                budget -= self._begin(sequence, page_tokens, budget)

    def _is_due(self, sequence: Sequence, now: float) -> bool:
        return (
            sequence.lookup is LookupPhase.DUE
            and self.looks_up(sequence)
            and (sequence.lookup_after_s <= now or self._scheduler.has_room(sequence))
            and self._publisher.has_settled(sequence.lookup_after)
        )

    def _begin(self, sequence: Sequence, page_tokens: int, budget: int) -> int:
        """Name a sequence's blocks, and ask for them once all have names; return the tokens it took."""
        if sequence.handed.ranges:
            return self._begin_handed(sequence, page_tokens)
        # The last token is computed in any case: its logits are what comes next.
        num_blocks = (sequence.num_tokens - 1) // page_tokens
        if not num_blocks:
            sequence.lookup = LookupPhase.DONE
            return 0
        before = sequence.block_keys(0, page_tokens).num_tokens
        wanted = num_blocks * page_tokens
        found = sequence.block_keys(min(wanted, before + budget), page_tokens)
        if found.num_tokens >= wanted:
            sequence.lookup = LookupPhase.UNDER_WAY
            sequence.lead = self._find_lead(sequence)
            self._lookups.begin(
                sequence, packed(found.keys[:num_blocks]), self._ledger.table.active, page_tokens
            )
        return found.num_tokens - before

    def _begin_handed(self, sequence: Sequence, page_tokens: int) -> int:
        """Share what another weight node holds, without asking who has it; return the tokens it named."""
        route, sequence.handed = sequence.handed, SequenceRoute()
        runs = runs_of(route, page_tokens)
        if not runs or route.num_tokens != sequence.num_tokens - 1:
            return 0  # it is looked up as any other
        sequence.lookup = LookupPhase.UNDER_WAY
        before = sequence.block_keys(0, page_tokens).num_tokens
        keys = sequence.block_keys(route.num_tokens, page_tokens)
        names = [*keys.keys[: route.num_tokens // page_tokens]]
        if route.num_tokens % page_tokens:
            names.append(keys.key())
        self._lookups.take_over(sequence, packed(names), runs, page_tokens, num_tokens=route.num_tokens)
        return keys.num_tokens - before
