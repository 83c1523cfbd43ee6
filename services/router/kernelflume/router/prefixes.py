"""What the pool holds of a prompt, as far as this router knows from what it sent and what came back.

Weight nodes find blocks of tokens by keys that are digests of all tokens up to a block's end
(``core.blocks``). The router keeps such keys too, but fewer: of a context's first blocks each, then of every
fourth, then of every sixteenth. That is as good for an estimate, and it is cheap for long prompts.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelflume.core.blocks import new_digest, token_bits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_STRIDES = ((256, 1), (1024, 4))
"""Up to so many blocks, a key every so many blocks."""
_LAST_STRIDE = 16


def key_ends(num_tokens: int, block_tokens: int, *, after: int = 0) -> Iterator[int]:
    """Give the ends, in tokens, of the beginnings of a context that have keys: after ``after``, in order."""
    first, num_blocks = after // block_tokens, num_tokens // block_tokens
    for limit, stride in (*_STRIDES, (num_blocks, _LAST_STRIDE)):
        for block in range(first - first % stride + stride, min(limit, num_blocks) + 1, stride):
            yield block * block_tokens
        first = max(first, limit)


class ContextKeys:
    """Keys of beginnings of one context, which grows at its end."""

    def __init__(self, block_tokens: int, *, salt: str = "") -> None:
        """Begin an empty context.

        Args:
            block_tokens: tokens of a block, as weight nodes say.
            salt: as weight nodes name this context's blocks with.
        """
        self._block_tokens = block_tokens
        self._digest = new_digest(salt)
        self.num_tokens = 0
        """Tokens taken in."""
        self.keys: list[bytes] = []
        """From the shortest beginning to the longest."""
        self.ends: list[int] = []
        """Length in tokens of each."""

    def extend(self, token_ids: Sequence[int]) -> None:
        """Take in the tokens that follow."""
        first = taken = self.num_tokens
        bits, digest = token_bits(token_ids), self._digest
        for end in key_ends(first + len(token_ids), self._block_tokens, after=first):
            digest.update(bits[taken - first : end - first])
            self.keys.append(digest.digest())
            self.ends.append(end)
            taken = end
        digest.update(bits[taken - first :])
        self.num_tokens = first + len(token_ids)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a context."""

    num_tokens: int = 0
    """Length of its longest beginning that the pool holds."""
    address: str | None = None
    """Node where the longest context ran that this one goes on from."""


class PrefixIndex:
    """Remembers a bounded number of keys, the latest used ones. In one event loop.

    A context's end is remembered with the node that ran it: another context with the same beginning goes on
    from it, and so belongs to its session. A beginning that many contexts share, such as a system prompt, is
    nobody's end and pins nothing.
    """

    def __init__(self, max_keys: int) -> None:
        """Make an empty index of at most ``max_keys`` keys."""
        self._max_keys = max_keys
        self._addresses: OrderedDict[bytes, str | None] = OrderedDict()
        """By key, the latest used last: where a context ran that ended there, if one did."""

    def __len__(self) -> int:
        return len(self._addresses)

    def look(self, context: ContextKeys) -> Known:
        """Return what is known of a context; nothing counts as used."""
        num_tokens, address = 0, None
        for key, end in zip(context.keys, context.ends, strict=True):
            if key not in self._addresses:
                break
            num_tokens = end
            address = self._addresses[key] or address
        return Known(num_tokens, address)

    def correct(self, context: ContextKeys, num_cached_tokens: int) -> None:
        """Forget what a weight node did not find in the pool: all but the first tokens of a context."""
        for key, end in zip(context.keys, context.ends, strict=True):
            if end > num_cached_tokens:
                self._addresses.pop(key, None)

    def add(self, context: ContextKeys, address: str) -> None:
        """Remember that the pool holds a context, which ran on a node."""
        # The beginning is used last: it is held as long as what follows, as in the pool.
        for key in reversed(context.keys):
            self._addresses.setdefault(key, None)
            self._addresses.move_to_end(key)
        if context.keys:
            self._addresses[context.keys[-1]] = address
        while len(self._addresses) > self._max_keys:
            self._addresses.popitem(last=False)
