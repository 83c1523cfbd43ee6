"""Which weight node each session is pinned to."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelflume.runtime.clock import Clock

SESSION_HEADER = "x-session-id"
"""Header by which a client names the session that a request belongs to."""
_KEY_BYTES = 16

SessionKey = bytes


def session_key(tenant_id: str, name: str) -> SessionKey:
    """Return the key of a session that a client names: of a fixed size, and its own for each tenant."""
    return blake2b(
        name.encode(errors="surrogatepass"),
        digest_size=_KEY_BYTES,
        key=blake2b(tenant_id.encode(), digest_size=32).digest(),
    ).digest()


class SessionTable:
    """Remembers a bounded number of sessions, the latest used ones, for a bounded time. In one event loop."""

    def __init__(self, *, max_sessions: int, ttl_s: float, clock: Clock) -> None:
        """Make an empty table.

        Args:
            max_sessions: most sessions; the one that was used longest ago gives way.
            ttl_s: a session is forgotten so long after its last request.
            clock: tells the time.
        """
        self._max_sessions = max_sessions
        self._ttl_s = ttl_s
        self._clock = clock
        self._sessions: OrderedDict[SessionKey, tuple[str, float]] = OrderedDict()
        """Address and time of the last use; the latest used last."""

    def __len__(self) -> int:
        return len(self._sessions)

    def address(self, key: SessionKey) -> str | None:
        """Return the address of the node that a session is pinned to, or None."""
        self._drop_old()
        found = self._sessions.get(key)
        return None if found is None else found[0]

    def pin(self, key: SessionKey, address: str) -> None:
        """Pin a session to a node, from its request now on."""
        self._drop_old()
        self._sessions[key] = (address, self._clock.now())
        self._sessions.move_to_end(key)
        if len(self._sessions) > self._max_sessions:
            self._sessions.popitem(last=False)

    def _drop_old(self) -> None:
        oldest = self._clock.now() - self._ttl_s
        while self._sessions:
            key = next(iter(self._sessions))
            if self._sessions[key][1] > oldest:
                return
            del self._sessions[key]
