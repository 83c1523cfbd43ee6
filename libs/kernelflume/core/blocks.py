"""Names of blocks of tokens, by which keys and values that were computed once are found again.

A block is as many tokens as a page holds, and begins where the one before ends. Its key is a digest of *all*
tokens up to its end, so that equal keys mean equal contexts and a key needs no other beside it; and of a
salt, so that those who must not see each other's blocks never have a key in common.
"""

from __future__ import annotations

import sys
from array import array
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

KEY_BYTES = 16
"""Bytes of a key: nobody finds two contexts with one key."""
MAX_SALT_BYTES = 64
WORTH_TOKENS = 128
"""Fewest tokens that are worth waiting for until another sequence has computed them: it takes a few steps to
find them in the pool."""
_PURPOSE = b"kernelflume.kv"
_UINT32 = "I"


def new_digest(salt: str = "") -> blake2b:
    """Return the digest of an empty context: ``update`` it with ``token_bits``.

    What ``digest`` returns then is the key of the context so far, and of the block that ends there.
    """
    key = salt.encode()
    if len(key) > MAX_SALT_BYTES:
        key = blake2b(key).digest()
    return blake2b(digest_size=KEY_BYTES, key=key, person=_PURPOSE)


def token_bits(token_ids: Sequence[int]) -> memoryview:
    """Return tokens as they are digested: [num_tokens], 32 bits each, little-endian.

    An array takes a list nine times as fast as numpy does.
    """
    numbers = array(_UINT32, token_ids)
    if sys.byteorder == "big":
        numbers.byteswap()
    return memoryview(numbers)


class BlockKeys:
    """The keys of one context, which grows at its end. Not shared between threads."""

    __slots__ = ("_block_tokens", "_digest", "_keys", "_num_tokens")

    def __init__(self, block_tokens: int, *, salt: str = "") -> None:
        """Begin an empty context.

        Args:
            block_tokens: tokens of a block.
            salt: contexts with different salts have no key in common.
        """
        self._block_tokens = block_tokens
        self._digest = new_digest(salt)
        self._num_tokens = 0
        self._keys: list[bytes] = []

    @property
    def block_tokens(self) -> int:
        """Tokens of a block."""
        return self._block_tokens

    @property
    def num_tokens(self) -> int:
        """Tokens taken in."""
        return self._num_tokens

    @property
    def keys(self) -> Sequence[bytes]:
        """Key of each full block, in order."""
        return self._keys

    def extend(self, token_ids: Sequence[int]) -> None:
        """Take in the tokens that follow."""
        block_tokens = self._block_tokens
        bits = token_bits(token_ids)
        first = -self._num_tokens % block_tokens or block_tokens
        taken = 0
        for end in range(first, len(bits) + 1, block_tokens):
            self._digest.update(bits[taken:end])
            self._keys.append(self._digest.digest())
            taken = end
        self._digest.update(bits[taken:])
        self._num_tokens += len(bits)

    def key(self) -> bytes:
        """Return the key of the context as it is, also where its last block is not full."""
        return self._digest.digest()


def block_keys(token_ids: Sequence[int], block_tokens: int, *, salt: str = "") -> Sequence[bytes]:
    """Return the key of each full block of a context."""
    keys = BlockKeys(block_tokens, salt=salt)
    keys.extend(token_ids)
    return keys.keys
