"""A pool that keeps KV after its turn, for later turns and other sessions. It counts tokens."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelflume.scaler.sim.sessions import Session, Turn

Key = tuple[str, int]
"""A session with all that it has in common with its own past, or a block that any session may begin with."""


class PrefixCache:
    """Least recently used first out. One simulation owns it."""

    def __init__(self, capacity_tokens: int) -> None:
        """Begin empty.

        Args:
            capacity_tokens: the most tokens that it keeps.
        """
        self._capacity_tokens = capacity_tokens
        self._entries: OrderedDict[Key, int] = OrderedDict()
        """Tokens of each, the longest unused first."""
        self.held_tokens = 0

    def hit_tokens(self, session: Session, turn: Turn) -> int:
        """Return how many leading tokens of a turn's context are kept, and note that they were used."""
        hit = 0
        for key, tokens in _keys(session, turn, turn.context_tokens):
            kept = self._entries.get(key, 0)
            if kept:
                self._entries.move_to_end(key)
            hit += min(kept, tokens)
            if kept < tokens:
                break
        return min(hit, turn.reusable_tokens)

    def store(self, session: Session, turn: Turn) -> None:
        """Keep what a turn holds at its end."""
        for key, wanted in _keys(session, turn, turn.peak_tokens):
            tokens = min(wanted, self._capacity_tokens)
            self.held_tokens += tokens - self._entries.pop(key, 0)
            self._entries[key] = tokens
        while self.held_tokens > self._capacity_tokens:
            key, tokens = next(iter(self._entries.items()))
            excess = min(tokens, self.held_tokens - self._capacity_tokens)
            self.held_tokens -= excess
            # Of a session the end goes first: what is left is a prefix still. Of a block nothing is left.
            if key[0] == "session" and tokens > excess:
                self._entries[key] = tokens - excess
            else:
                self.held_tokens -= tokens - excess
                del self._entries[key]


def _keys(session: Session, turn: Turn, tokens: int) -> list[tuple[Key, int]]:
    if not turn.blocks:
        return [(("session", session.number), tokens)]
    size = turn.block_tokens
    return [
        (("block", block), min(size, turn.context_tokens - index * size))
        for index, block in enumerate(turn.blocks)
        if index * size < turn.context_tokens
    ]
