"""How waiting sequences find their beginnings in the pool (ADR 17): ask every node, choose, share.

The step loop does not wait for any of it: it takes in what arrived between two steps, and asks which lookups
are through. Each has a deadline; then it does without what did not answer.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kernelflume.core.errors import PeerLostError
from kernelflume.core.names import split_name
from kernelflume.transport.wire import MAX_BLOCKS
from kernelflume.wnode.named_blocks import named_blocks
from kernelflume.wnode.publisher import free_sequence
from kernelflume.wnode.runs import Run, by_node, choose_runs, cut, num_beginning, route_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kernelflume.core.ranges import SequenceRoute
    from kernelflume.runtime.clock import Clock
    from kernelflume.transport.wire import Found, Shared
    from kernelflume.wnode.link import Link
    from kernelflume.wnode.links import LinkTable
    from kernelflume.wnode.sequence import Sequence

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
"""How often blocks are shared for one sequence, where some turn out to be gone."""


@dataclass(slots=True)
class _Part:
    """What one node is asked to share."""

    blocks: np.ndarray
    """[num_blocks] of BLOCK_DTYPE"""
    num_asked: int = 0
    num_held: int = 0
    is_open: bool = True
    """True until nothing more will come of it."""


@dataclass(slots=True)
class _Lookup:
    sequence: Sequence
    keys: np.ndarray
    """[num_blocks] keys of the beginning"""
    page_tokens: int
    num_tokens: int
    """Tokens of the beginning: the last block may be less than full."""
    deadline_s: float
    found: dict[str, np.ndarray] = field(default_factory=dict)
    """Node id -> [num_blocks] bool, what it holds as far as it has said so."""
    num_unanswered: int = 0
    sequence_id: int = 0
    """Name that blocks are shared under; 0 while they are being found."""
    runs: tuple[Run, ...] = ()
    parts: dict[str, _Part] = field(default_factory=dict)
    num_attempts: int = 0

    @property
    def is_answered(self) -> bool:
        if not self.sequence_id:
            return self.num_unanswered == 0
        return not any(part.is_open for part in self.parts.values())


class Lookups:
    """The lookups under way. Owned by the step loop's thread."""

    def __init__(
        self, links: LinkTable, clock: Clock, new_id: Callable[[], int], *, timeout_s: float
    ) -> None:
        """Begin without one.

        Args:
            links: the way to attention nodes.
            clock: for deadlines.
            new_id: makes names of sequences; each is used once.
            timeout_s: how long nodes have to say what they hold, and again to share it.
        """
        self._links = links
        self._clock = clock
        self._new_id = new_id
        self._timeout_s = timeout_s
        self._under_way: dict[str, _Lookup] = {}
        """By request id."""
        self._finds: dict[tuple[str, int], tuple[_Lookup, int]] = {}
        """Node name and number of a question -> the lookup, and the first block that was asked for."""
        self._sharing: dict[int, _Lookup] = {}
        """By the name that they share under."""
        self._last_number = 0
        self._silent: set[str] = set()
        """Names of nodes that did not answer in time, and have said nothing since: asking them again would
        make every request wait for as long as such a node is frozen."""

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, sequence: Sequence, keys: np.ndarray, node_ids: Iterable[str], page_tokens: int) -> None:
        """Ask nodes which blocks of a sequence they hold.

        Args:
            sequence: a waiting one.
            keys: [num_blocks] keys of the blocks from its first on that it wants.
            node_ids: the nodes.
            page_tokens: tokens of a block.
        """
        lookup = self._enter(sequence, keys, page_tokens, len(keys) * page_tokens)
        for node_id in node_ids:
            link = self._links.of_node(node_id)
            if link is not None and link.node_name not in self._silent:
                self._find(lookup, link)

    def take_over(
        self,
        sequence: Sequence,
        keys: np.ndarray,
        runs: tuple[Run, ...],
        page_tokens: int,
        *,
        num_tokens: int,
    ) -> None:
        """Share a beginning that is known to be held, without asking who has it.

        Args:
            sequence: a waiting one.
            keys: [num_blocks] keys of its blocks, that of the last for exactly ``num_tokens``.
            runs: who holds which.
            page_tokens: tokens of a block.
            num_tokens: tokens of the beginning.
        """
        self._share(self._enter(sequence, keys, page_tokens, num_tokens), runs)

    def _enter(self, sequence: Sequence, keys: np.ndarray, page_tokens: int, num_tokens: int) -> _Lookup:
        deadline_s = self._clock.now() + self._timeout_s
        lookup = _Lookup(sequence, keys, page_tokens, num_tokens, deadline_s)
        self._under_way[sequence.request_id] = lookup
        return lookup

    def take_found(self, link: Link, notice: Found) -> None:
        """Take in what a node holds."""
        self._silent.discard(link.node_name)
        lookup, first = self._finds.pop((link.node_name, notice.number), (None, 0))
        if lookup is None:  # it was given up
            return
        lookup.num_unanswered -= 1
        lookup.found[link.node_id][first : first + len(notice.is_here)] = notice.is_here

    def take_shared(self, link: Link, notice: Shared) -> None:
        """Take in what a node shared."""
        self._silent.discard(link.node_name)
        lookup = self._sharing.get(notice.sequence)
        part = None if lookup is None else lookup.parts.get(link.node_id)
        if lookup is None or part is None:
            # It was given up, and the answer may have overtaken what frees it.
            free_sequence(link, notice.sequence)
            return
        part.num_held += notice.num_blocks
        if part.num_held < part.num_asked or part.num_asked == len(part.blocks):
            part.is_open = False
        else:
            self._ask(lookup, link, part)

    def advance(self) -> list[Sequence]:
        """Go on where answers came or time is up; return the sequences whose lookup is through.

        Those that found something have its route and the name that it is shared under.
        """
        through: list[Sequence] = []
        for lookup in list(self._under_way.values()):
            is_late = self._clock.now() >= lookup.deadline_s
            if not lookup.is_answered and not is_late:
                continue
            if not lookup.sequence_id:
                self._silent.update(name for name, _ in self._forget_finds(lookup))
                self._share(lookup, choose_runs(lookup.found))
            else:
                self._conclude(lookup)
            if lookup.sequence.request_id not in self._under_way:
                through.append(lookup.sequence)
        return through

    def cancel(self, sequence: Sequence) -> None:
        """Give a sequence's lookup up, if one is under way, and all that it asked to share."""
        lookup = self._under_way.pop(sequence.request_id, None)
        if lookup is not None:
            self._forget_finds(lookup)
            self._unshare(lookup)

    def lose(self, node_id: str) -> None:
        """Expect nothing more of a node, and use nothing that it said."""
        self._silent = {name for name in self._silent if split_name(name)[0] != node_id}
        for lookup in self._under_way.values():
            lookup.found.pop(node_id, None)
            part = lookup.parts.get(node_id)
            if part is not None:
                part.is_open, part.num_held = False, 0
        for key in [key for key in self._finds if split_name(key[0])[0] == node_id]:
            lookup, _ = self._finds.pop(key)
            lookup.num_unanswered -= 1

    def _find(self, lookup: _Lookup, link: Link) -> None:
        keys = lookup.keys
        lookup.found[link.node_id] = np.zeros(len(keys), bool)
        try:
            for first in range(0, len(keys), MAX_BLOCKS):
                self._last_number += 1
                link.send_find(self._last_number, keys[first : first + MAX_BLOCKS])
                self._finds[link.node_name, self._last_number] = (lookup, first)
                lookup.num_unanswered += 1
        except PeerLostError as error:  # the next step's exchange tells what that means
            logger.warning("%s", error)

    def _share(self, lookup: _Lookup, runs: tuple[Run, ...]) -> None:
        """Ask for blocks under a name of their own."""
        if not runs:
            self._end(lookup)
            return
        lookup.sequence_id = self._new_id()
        lookup.runs = runs
        lookup.num_attempts += 1
        lookup.deadline_s = self._clock.now() + self._timeout_s
        lookup.parts = {node_id: _Part(self._blocks(lookup, own)) for node_id, own in by_node(runs).items()}
        self._sharing[lookup.sequence_id] = lookup
        for node_id, part in lookup.parts.items():
            link = self._links.of_node(node_id)
            if link is None:
                part.is_open = False
            else:
                self._ask(lookup, link, part)

    @staticmethod
    def _blocks(lookup: _Lookup, runs: Iterable[Run]) -> np.ndarray:
        numbers = np.concatenate([np.arange(run.start, run.end) for run in runs])
        return named_blocks(numbers, lookup.keys[numbers], lookup.page_tokens, num_tokens=lookup.num_tokens)

    @staticmethod
    def _ask(lookup: _Lookup, link: Link, part: _Part) -> None:
        """Ask for the next blocks of a part: as many as a notice names."""
        blocks = part.blocks[part.num_asked : part.num_asked + MAX_BLOCKS]
        part.num_asked += len(blocks)
        try:
            link.send_share(lookup.sequence_id, blocks, lookup.sequence.pinning)
        except PeerLostError as error:
            logger.warning("%s", error)
            part.is_open = False

    def _conclude(self, lookup: _Lookup) -> None:
        """Take what was shared, if it is a beginning and nothing else; otherwise share that much anew."""
        num_held = {node_id: part.num_held for node_id, part in lookup.parts.items()}
        num_blocks = num_beginning(lookup.runs, num_held)
        if lookup.is_answered and sum(num_held.values()) == num_blocks:
            runs = cut(lookup.runs, num_blocks)
            if runs:
                lookup.sequence.share(lookup.sequence_id, self._route(lookup, runs), lookup.page_tokens)
                del self._sharing[lookup.sequence_id]
                del self._under_way[lookup.sequence.request_id]
            else:
                self._end(lookup)
            return
        # A node holds more than can be used, or may yet do so: only a new name is sure to hold just the rest.
        self._unshare(lookup)
        if lookup.num_attempts < MAX_ATTEMPTS:
            self._share(lookup, cut(lookup.runs, num_blocks))
        else:
            self._end(lookup)

    @staticmethod
    def _route(lookup: _Lookup, runs: tuple[Run, ...]) -> SequenceRoute:
        return route_of(runs, lookup.page_tokens, num_tokens=lookup.num_tokens)

    def _end(self, lookup: _Lookup) -> None:
        """Go without."""
        self._unshare(lookup)
        del self._under_way[lookup.sequence.request_id]

    def _unshare(self, lookup: _Lookup) -> None:
        """Free what was asked for under the present name."""
        if self._sharing.pop(lookup.sequence_id, None) is None:
            return
        for node_id in lookup.parts:
            link = self._links.of_node(node_id)
            if link is not None:
                free_sequence(link, lookup.sequence_id)
        lookup.parts = {}

    def _forget_finds(self, lookup: _Lookup) -> list[tuple[str, int]]:
        """Expect no more answers to a lookup's questions; return those that have none."""
        unanswered = [key for key, (asking, _) in self._finds.items() if asking is lookup]
        for key in unanswered:
            del self._finds[key]
        lookup.num_unanswered = 0
        return unanswered
