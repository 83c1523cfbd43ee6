"""Random ids of requests and answers, many of one call to the system: a call takes longer than all else."""

from __future__ import annotations

import os

_ID_BYTES = 16
_POOL_BYTES = 256 * _ID_BYTES


class Identifiers:
    """Gives ids that nobody can foresee. Used in one event loop, and not across a fork."""

    def __init__(self) -> None:
        """Begin with none."""
        self._pool = b""
        self._place = 0

    def new(self) -> str:
        """Return 32 hexadecimal digits, those of 16 random bytes."""
        if self._place >= len(self._pool):
            self._pool, self._place = os.urandom(_POOL_BYTES), 0
        begin = self._place
        self._place = begin + _ID_BYTES
        return self._pool[begin : self._place].hex()
