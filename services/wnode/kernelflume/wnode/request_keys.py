"""Keys of the random numbers of requests that bring no seed."""

from __future__ import annotations

from hashlib import blake2b
from itertools import count

from kernelflume.wnode.sampling.draw import signed

_NODE_BYTES = 4


class RequestKeys:
    """Keys for one weight node's requests, in order: the same at every start, and others on other nodes.

    All weight nodes of a cluster are given one seed. If they counted from the same number, the choices of one
    prompt that run on different nodes would draw the same tokens.
    """

    def __init__(self, seed: int, node_id: str) -> None:
        """Begin with the first request of a node of that name."""
        digest = blake2b(f"{seed}:{node_id}".encode(), digest_size=_NODE_BYTES).digest()
        self._first = int.from_bytes(digest, "little") << 32
        self._numbers = count(1)

    def next(self) -> int:
        """Return the next request's key: 64 bits, signed."""
        return signed(self._first + next(self._numbers))
