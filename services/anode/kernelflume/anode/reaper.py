"""Which weight nodes are gone for good, judged by their leases. Pure: time and leases come as arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


class LeaseReaper:
    """Remembers since when each linked weight node has been without a lease."""

    def __init__(self, *, grace_s: float) -> None:
        self._grace_s = grace_s
        self._missing_since: dict[str, float] = {}

    def observe(self, linked: Collection[str], living: Collection[str] | None, now: float) -> tuple[str, ...]:
        """Take in one look at the store and return the linked nodes whose grace is over.

        Args:
            linked: names of the weight nodes that have a link.
            living: names of the weight nodes that hold a lease, or None when the store cannot be asked: its
                outage says nothing about weight nodes, so every grace starts anew afterwards.
            now: monotonic seconds.
        """
        if living is None:
            self._missing_since.clear()
            return ()
        self._missing_since = {
            name: self._missing_since.get(name, now) for name in linked if name not in living
        }
        return tuple(name for name, since in self._missing_since.items() if now - since >= self._grace_s)
