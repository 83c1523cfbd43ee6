"""The choices that run now, for whoever moves them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kernelflume.router.placement.balance import BalanceMove, RunningChoice


class Mover(Protocol):
    """Moves one choice that runs."""

    @property
    def is_balancing(self) -> bool:
        """True while it moves for balance."""
        ...

    def running(self) -> RunningChoice | None:
        """Return the choice as it runs now; None between two runs."""
        ...

    def move(self, move: BalanceMove) -> None:
        """Order the choice away, if nobody has done so."""
        ...


class Roster:
    """Choices by their ids, from their first token to their end: no more than requests may be in progress."""

    def __init__(self) -> None:
        self._movers: dict[str, Mover] = {}

    def __len__(self) -> int:
        return len(self._movers)

    def add(self, choice_id: str, mover: Mover) -> None:
        """Take a choice in."""
        self._movers[choice_id] = mover

    def remove(self, choice_id: str) -> None:
        """Forget a choice."""
        self._movers.pop(choice_id, None)

    @property
    def is_balancing(self) -> bool:
        """True while any choice moves for balance."""
        return any(mover.is_balancing for mover in self._movers.values())

    def running(self) -> list[RunningChoice]:
        """Return all choices that run."""
        found = (mover.running() for mover in self._movers.values())
        return [choice for choice in found if choice is not None]

    def move(self, move: BalanceMove) -> None:
        """Order a choice away, if it has not ended."""
        mover = self._movers.get(move.choice_id)
        if mover is not None:
            mover.move(move)
