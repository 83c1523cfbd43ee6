"""Where new tokens are placed, and how many pages that takes: routes and pages of one weight node.

Pages are counted as the attention nodes count them: a page holds one block of one context, so that a token
range begins where a block does. A block is filled where it was begun, also when its tail is to move.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from kernelflume.wnode.batch import KvWrite, extended
from kernelflume.wnode.placement import (
    NodeRoom,
    TailMove,
    choose_node,
    go_on,
    rebalance,
    spread_pages,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kernelflume.core.ranges import SequenceRoute
    from kernelflume.wnode.batch import Chunk
    from kernelflume.wnode.links import LinkTable
    from kernelflume.wnode.sequence import Sequence


@dataclass(frozen=True, slots=True)
class AdoptedTable:
    """What the step loop needs of a snapshot, built before it is adopted."""

    epoch: int = 0
    active: tuple[str, ...] = ()
    """Nodes that may receive new ranges."""
    known: frozenset[str] = frozenset()
    """Nodes that may hold ranges: active and draining."""
    thresholds: Mapping[str, int] = field(default_factory=dict)
    """Tokens up to which an active node is filled while another one is below its own (C_thresh); a node that
    is not named is filled up."""


@dataclass(slots=True)
class Ledger:
    """The adopted table, the tails, and the pages promised in the step being planned."""

    links: LinkTable
    max_range_tokens: int = 0
    spread_tokens: int = 0
    """Fewest tokens of a range when a prompt is spread over nodes; 0 spreads none."""
    table: AdoptedTable = field(default_factory=AdoptedTable)
    _block_tokens: int = 0
    """Tokens of a page, also while no node is active; as of the beginning of the step."""
    _usable: frozenset[str] = frozenset()
    _moves: dict[int, TailMove] = field(default_factory=dict)
    _promised: dict[str, int] = field(default_factory=dict)
    _tails: dict[str, int] = field(default_factory=dict)
    _spreads: dict[int, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    """Sequence id -> (node, position at which its share of the prompt ends), in order."""
    _num_ranges: int = 0
    """Ranges that were begun."""
    _last_ranges: dict[str, int] = field(default_factory=dict)
    """Node -> number of the last range begun there; of the table's nodes."""

    def adopt(self, table: AdoptedTable) -> None:
        """Swap the table: all that a scale event costs on the step loop's path (paper section 6.2)."""
        self.table = table
        self._last_ranges = {
            node_id: number for node_id, number in self._last_ranges.items() if node_id in table.known
        }

    def rebalance(self, sequences: Iterable[Sequence]) -> int:
        """Decide which tails move at their next block, now that the table changed; return how many.

        Moves that an earlier table led to and that no token has carried out yet stay: a block may take many
        steps to fill, and a node is only new in its first table.
        """
        usable = frozenset(
            node_id for node_id in self.table.active if self.links.of_node(node_id) is not None
        )
        joined, self._usable = usable - self._usable, usable
        tails = {
            sequence.sequence_id: sequence.route.tail_node_id
            for sequence in sequences
            if sequence.route.tail_node_id is not None
        }
        pending = {
            sequence_id: move
            for sequence_id, move in self._moves.items()
            if sequence_id in tails and move.node_id in usable
        }
        planned = tails | {sequence_id: move.node_id for sequence_id, move in pending.items()}
        self.begin_step(())
        moves = rebalance(self._rooms(), planned, joined=joined)
        self._moves = {
            sequence_id: move
            for sequence_id, move in (pending | {move.sequence_id: move for move in moves}).items()
            if move.node_id != tails[sequence_id]  # its node came back before the tail had left it
        }
        return len(moves)

    def begin_step(self, sequences: Iterable[Sequence]) -> None:
        """Forget the last step's promises and count tails anew."""
        self._block_tokens = self.links.page_tokens
        self._promised.clear()
        self._tails.clear()
        for sequence in sequences:
            tail = sequence.route.tail_node_id
            if tail is not None:
                self._tails[tail] = self._tails.get(tail, 0) + 1

    def usable_pages(self, node_id: str) -> int:
        """Pages that this step may still take on a node."""
        link = self.links.of_node(node_id)
        return 0 if link is None else link.num_usable_pages - self._promised.get(node_id, 0)

    @property
    def num_usable_pages(self) -> int:
        """Pages that this step may still take on all active nodes."""
        return sum(max(0, self.usable_pages(node_id)) for node_id in self.table.active)

    @property
    def num_pages(self) -> int:
        """Pages of all active nodes, free or not."""
        links = (self.links.of_node(node_id) for node_id in self.table.active)
        return sum(link.num_pages for link in links if link is not None)

    @property
    def page_tokens(self) -> int:
        """Tokens of a page, which all nodes share; 0 while no node is active."""
        links = (self.links.of_node(node_id) for node_id in self.table.active)
        return next((link.page_tokens for link in links if link is not None), 0)

    @property
    def is_settling(self) -> bool:
        """True while some node has yet to say that pages became free, or that they are shared."""
        return any(link.is_settling for link in self.links.all())

    def place(self, sequence: Sequence, num_rows: int) -> tuple[KvWrite, ...] | None:
        """Choose nodes for a sequence's next tokens and promise the pages.

        Returns:
            The writes in order of position, or None when there is no room; then nothing was promised.
        """
        if not sequence.copies_last:
            return self._place_at(sequence, sequence.route, sequence.num_computed, num_rows)
        tail = sequence.route.tail_node_id
        if tail is None or not self.can_go_on(sequence):
            return None
        self._promised[tail] = self._promised.get(tail, 0) + 1
        writes = self._place_at(sequence, sequence.route, sequence.num_computed, num_rows)
        if writes is None:
            self._promised[tail] -= 1
            return None
        first, *rest = writes
        return replace(first, num_new_pages=first.num_new_pages + 1), *rest

    def place_next(self, chunk: Chunk) -> tuple[KvWrite, ...] | None:
        """Choose the node for the token behind a chunk that is under way, as ``place`` does."""
        return self._place_at(chunk.sequence, chunk.route_after(), chunk.end, 1)

    def _place_at(
        self, sequence: Sequence, route: SequenceRoute, start: int, num_rows: int
    ) -> tuple[KvWrite, ...] | None:
        if num_rows == 1 and start > sequence.num_shared:
            write = self._in_last_page(route, start)
            if write is not None:
                return (write,)
        return self._place_blocks(sequence, route, start, num_rows)

    def _place_blocks(
        self, sequence: Sequence, route: SequenceRoute, start: int, num_rows: int
    ) -> tuple[KvWrite, ...] | None:
        promised = dict(self._promised)
        writes: list[KvWrite] = []
        held = {node_id: route.num_tokens_on(node_id) for node_id in route.node_ids}
        tail, tail_length = _tail_of(route)
        opens = tail is None
        target = self._target(sequence, tail, start)
        block_tokens = self._block_tokens
        position, end = start, start + num_rows
        while position < end:
            left = end - position
            in_block = -position % block_tokens if block_tokens else 0
            if in_block:  # the page is there, whatever its node's state
                take = min(left, in_block)
            else:
                if target is not None:
                    tail, tail_length, opens, target = target, 0, True, None
                take = min(left, self._range_room(tail_length), self._page_room(tail))
                planned = self._planned(sequence, position)
                if planned is not None:
                    node_id, num_tokens = planned
                    if node_id != tail:
                        tail, tail_length, opens = node_id, 0, True
                    take = min(left, num_tokens, self._range_room(tail_length), self._page_room(tail))
                    if take <= 0:  # the node filled up or left meanwhile
                        self._spreads.pop(sequence.sequence_id)
            if take <= 0:
                tail = self._choose(tail)
                if tail is None:
                    self._promised = promised
                    return None
                tail_length, opens = 0, True
                continue
            write = self._promise(tail, held, take, opens=opens) if tail is not None else None
            if write is None:  # the block's node is gone: its sequence is about to restart
                self._promised = promised
                return None
            if writes and not opens:
                write = writes.pop().joined(write)
            writes.append(write)
            position += take
            tail_length += take
            opens = False
        return tuple(writes)

    def can_go_on(self, sequence: Sequence) -> bool:
        """False where a sequence's next token goes into a copy of its last block, which has no page."""
        tail = sequence.route.tail_node_id
        return not sequence.copies_last or tail is None or self.usable_pages(tail) > 0

    def commit(self, sequence: Sequence, writes: Iterable[KvWrite]) -> bool:
        """Extend a sequence's route by the writes that were sent; True when a range was opened."""
        sequence.route = extended(sequence.route, writes)
        sequence.copies_last = False
        opened = [write.node_id for write in writes if write.opens_range]
        for node_id in opened:
            self._num_ranges += 1
            self._last_ranges[node_id] = self._num_ranges
        if opened:
            self._moves.pop(sequence.sequence_id, None)
        return bool(opened)

    def forget(self, sequence_id: int) -> None:
        """Drop what is remembered of a sequence that ended or restarts."""
        self._moves.pop(sequence_id, None)
        self._spreads.pop(sequence_id, None)

    def _in_last_page(self, route: SequenceRoute, position: int) -> KvWrite | None:
        """Place one token where its page is there already, as it is for most rows of decode steps."""
        if not self._block_tokens or position % self._block_tokens == 0:
            return None
        tail = route.tail_node_id
        if tail is None or self.links.of_node(tail) is None:
            return None
        return KvWrite(tail, 1, 0, opens_range=False)

    def _target(self, sequence: Sequence, tail: str | None, start: int) -> str | None:
        """Return the node at which the next range begins once the present block is full; None: not yet."""
        move = self._moves.get(sequence.sequence_id)
        if move is not None and move.node_id in self.table.active:
            self._spreads.pop(sequence.sequence_id, None)
            # The step under way may have carried it out.
            return None if move.node_id == tail else move.node_id
        if start > sequence.num_shared:
            return None
        # Its first own tokens; what came before, if anything, was found in the pool.
        self._spread(sequence)
        if tail is None or sequence.sequence_id in self._spreads:
            return None
        chosen = go_on(self._rooms(), tail)
        return None if chosen == tail else chosen

    def _spread(self, sequence: Sequence) -> None:
        """Plan where the ranges of a long prompt begin and end."""
        self._spreads.pop(sequence.sequence_id, None)
        if not self.spread_tokens or sequence.num_pending < 2 * self.spread_tokens:
            return
        page_tokens = self.page_tokens
        if not page_tokens:
            return
        shares = spread_pages(
            self._rooms(),
            -(-sequence.num_pending // page_tokens),
            min_pages=-(-self.spread_tokens // page_tokens),
            after=sequence.route.tail_node_id,
        )
        ends = accumulate((num_pages * page_tokens for _, num_pages in shares), initial=sequence.num_computed)
        plan = tuple((node_id, end) for (node_id, _), end in zip(shares, list(ends)[1:], strict=True))
        if plan:
            self._spreads[sequence.sequence_id] = plan

    def _planned(self, sequence: Sequence, position: int) -> tuple[str, int] | None:
        """Return the node that a spread prompt's position goes to, and how many more tokens do."""
        for node_id, end in self._spreads.get(sequence.sequence_id, ()):
            if position < end:
                return node_id, end - position
        return None

    def _pages_below_threshold(self, node_id: str) -> int:
        link = self.links.of_node(node_id)
        if link is None:
            return 0
        threshold = self.table.thresholds.get(node_id)
        reserve = 0 if threshold is None else link.num_pages - threshold // link.page_tokens
        return self.usable_pages(node_id) - max(0, reserve)

    def _pages(self, node_id: str) -> int:
        """Pages that a node may be given: below its threshold until every active node has reached its own."""
        below = self._pages_below_threshold(node_id)
        if below > 0:  # asked for every sequence of every step: the others are looked at only when it matters
            return below
        if any(self._pages_below_threshold(other) > 0 for other in self.table.active):
            return 0
        return max(0, self.usable_pages(node_id))

    def _rooms(self) -> list[NodeRoom]:
        return [
            NodeRoom(
                node_id=node_id,
                num_free_pages=self._pages(node_id),
                num_tails=self._tails.get(node_id, 0),
                last_range=self._last_ranges.get(node_id, 0),
            )
            for node_id in self.table.active
            if self.links.of_node(node_id) is not None
        ]

    def _choose(self, avoid: str | None) -> str | None:
        chosen = choose_node(self._rooms(), 1, avoid=avoid)
        if chosen is not None:
            self._tails[chosen] = self._tails.get(chosen, 0) + 1
        return chosen

    def _range_room(self, tail_length: int) -> int:
        """Tokens that the tail may still take, in whole blocks; a range has one at least."""
        if not self.max_range_tokens:
            return 1 << 30
        block_tokens = self._block_tokens or 1
        return max(block_tokens, self.max_range_tokens - self.max_range_tokens % block_tokens) - tail_length

    def _page_room(self, node_id: str | None) -> int:
        """Tokens that a node has pages for, where a block begins."""
        if node_id is None or node_id not in self.table.active:
            return 0
        link = self.links.of_node(node_id)
        return 0 if link is None else self._pages(node_id) * link.page_tokens

    def _promise(self, node_id: str, held: dict[str, int], num_rows: int, *, opens: bool) -> KvWrite | None:
        """Promise the pages of a write; None where the node is gone."""
        link = self.links.of_node(node_id)
        if link is None:
            return None
        before = held.get(node_id, 0)
        num_new_pages = -(-(before + num_rows) // link.page_tokens) - -(-before // link.page_tokens)
        held[node_id] = before + num_rows
        self._promised[node_id] = self._promised.get(node_id, 0) + num_new_pages
        return KvWrite(node_id, num_rows, num_new_pages, opens)


def _tail_of(route: SequenceRoute) -> tuple[str | None, int]:
    return (route.tail_node_id, route.ranges[-1].tokens.num_tokens) if route.ranges else (None, 0)
