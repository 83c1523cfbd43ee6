"""How pins begin and end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PinCounts:
    """Pages since the node's start. Changed by the ``BlockIndex`` alone; sent as a copy."""

    num_taken: int = 0
    num_refused: int = 0
    """Asked for while the share was full of pins of pages that sequences held."""
    num_displaced: int = 0
    """Ended by a newer pin, as the share was full."""
    num_yielded: int = 0
    """Dropped with their page, as sequences needed the room and nothing else was left."""
    num_expired: int = 0
    """Not used in their time."""
    num_given_up: int = 0
    """Ended by a request that asked for the ordinary rule."""

    def by_reason(self) -> dict[str, int]:
        """Return why pins ended."""
        return {
            "displaced": self.num_displaced,
            "room": self.num_yielded,
            "expired": self.num_expired,
            "given_up": self.num_given_up,
        }
