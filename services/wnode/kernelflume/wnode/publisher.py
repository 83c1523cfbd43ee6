"""Naming what sequences have computed, so that others find it (ADR 17), and freeing it once it is named."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kernelflume.core.errors import PeerLostError
from kernelflume.transport.wire import BLOCK_DTYPE, MAX_BLOCKS
from kernelflume.wnode.named_blocks import named_blocks, packed

if TYPE_CHECKING:
    from collections.abc import Sequence as Items

    from kernelflume.runtime.clock import Clock
    from kernelflume.transport.wire import Published
    from kernelflume.wnode.link import Link
    from kernelflume.wnode.links import LinkTable
    from kernelflume.wnode.sequence import Sequence

logger = logging.getLogger(__name__)

MAX_OPEN = 512
"""Notices that may wait for an answer, far fewer than a node takes before it drops the link: what more there
is to name is not worth the wait."""
MAX_OPEN_MOVING = 4 * MAX_OPEN
"""The same for sequences that move: what has no name is computed again. All of a node that drains move at
once."""


@dataclass(slots=True)
class _Naming:
    """Names of one sequence that one node was told and has not answered."""

    link: Link
    sequence_id: int
    number: int
    """Of the first of them."""
    deadline_s: float
    num_open: int = 0
    ends: bool = False
    """True when the sequence is to be freed after it."""


class Publisher:
    """What was published and is not answered. Owned by the step loop's thread."""

    def __init__(self, links: LinkTable, clock: Clock, *, timeout_s: float) -> None:
        """Begin without any; a node that answers nothing for ``timeout_s`` is not waited for."""
        self._links = links
        self._clock = clock
        self._timeout_s = timeout_s
        self._open: dict[tuple[str, int], _Naming] = {}
        """By node name and sequence."""
        self.last_number = 0
        """Of the latest names; they are numbered from 1."""

    @property
    def _num_open(self) -> int:
        return sum(naming.num_open for naming in self._open.values())

    @property
    def open_sequences(self) -> frozenset[int]:
        """Sequences with names that are not answered: who asks for these now may ask too early."""
        return frozenset(sequence_id for _, sequence_id in self._open)

    def has_settled(self, number: int) -> bool:
        """True when the names up to this number are answered, so that who asks for them finds them."""
        return all(naming.number > number for naming in self._open.values())

    def publish(
        self, sequence: Sequence, keys: Items[bytes], page_tokens: int, *, most: int = MAX_OPEN
    ) -> None:
        """Name a running sequence's full blocks that have no names yet; later, where too much is unanswered.

        Args:
            sequence: the sequence.
            keys: of its full blocks, in order, at least those that are computed.
            page_tokens: tokens of a block.
            most: notices that may be unanswered.
        """
        begin, end = sequence.num_named // page_tokens, sequence.num_computed // page_tokens
        blocks: dict[str, list[int]] = {}
        for owned in sequence.route.ranges:
            first = max(begin, owned.tokens.start // page_tokens)
            blocks.setdefault(owned.node_id, []).extend(
                range(first, min(end, owned.tokens.end // page_tokens))
            )
        if self._num_open >= most:
            return
        sequence.num_named = max(begin, end) * page_tokens
        for node_id, numbers in blocks.items():
            link = self._links.of_node(node_id)
            if link is not None and numbers:
                found = packed(keys[number] for number in numbers)
                named = named_blocks(np.array(numbers), found, page_tokens, num_tokens=sequence.num_computed)
                self._send(link, sequence, named)

    def publish_rest(self, sequence: Sequence, key: bytes, page_tokens: int) -> None:
        """Name a sequence's last block, which is not full, by the key of exactly what is computed."""
        link = self._links.of_node(sequence.route.ranges[-1].node_id)
        if link is not None and self._num_open < MAX_OPEN_MOVING:
            num_tokens = sequence.num_computed % page_tokens
            block = (key, sequence.num_computed - num_tokens, num_tokens)
            self._send(link, sequence, np.array([block], BLOCK_DTYPE))

    def release(self, sequence: Sequence) -> None:
        """Free a sequence's pages on every node that has or is being sent some, once its names are known."""
        for node_id in sequence.route.node_ids:
            link = self._links.of_node(node_id)
            if link is None:
                continue
            naming = self._open.get((link.node_name, sequence.sequence_id))
            if naming is None:
                free_sequence(link, sequence.sequence_id)
            else:
                naming.ends = True
                link.num_endings += 1

    def take_published(self, link: Link, notice: Published) -> None:
        """Take in that a node knows names."""
        naming = self._open.get((link.node_name, notice.sequence))
        if naming is None:  # it was not waited for
            return
        naming.num_open -= 1
        if not naming.num_open:
            self._close(naming)

    def is_late(self, now: float) -> bool:
        """True when ``advance`` has something to do."""
        return any(naming.deadline_s <= now for naming in self._open.values())

    def advance(self) -> None:
        """Wait no longer for what is late."""
        now = self._clock.now()
        for naming in [naming for naming in self._open.values() if naming.deadline_s <= now]:
            self._close(naming)

    def forget(self, node_name: str) -> None:
        """Expect nothing more of a node whose link was closed."""
        for key in [key for key in self._open if key[0] == node_name]:
            del self._open[key]

    def _send(self, link: Link, sequence: Sequence, blocks: np.ndarray) -> None:
        sequence_id = sequence.sequence_id
        key = (link.node_name, sequence_id)
        self.last_number += 1
        naming = self._open.setdefault(key, _Naming(link, sequence_id, self.last_number, 0.0))
        naming.deadline_s = self._clock.now() + self._timeout_s
        try:
            for first in range(0, len(blocks), MAX_BLOCKS):
                link.send_publish(sequence_id, blocks[first : first + MAX_BLOCKS], sequence.pinning)
                naming.num_open += 1
        except PeerLostError as error:  # the next step's exchange tells what that means
            logger.warning("%s", error)
            if not naming.num_open:
                del self._open[key]

    def _close(self, naming: _Naming) -> None:
        del self._open[naming.link.node_name, naming.sequence_id]
        if naming.ends:
            naming.link.num_endings -= 1
            free_sequence(naming.link, naming.sequence_id)


def free_sequence(link: Link, sequence_id: int) -> None:
    """Tell a node that a sequence ended. That a node is gone is for the next step's exchange to tell."""
    try:
        link.send_free([sequence_id])
    except PeerLostError as error:
        logger.warning("%s", error)
