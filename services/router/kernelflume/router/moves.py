"""One choice's moves from weight node to weight node: why, where to, how they end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Any

from kernelflume.router.placement.decision import MoveReason

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from kernelflume.router.metrics import RouterMetrics
    from kernelflume.runtime.clock import Clock

    Prepare = Callable[[], Coroutine[Any, Any, bool]]


_COOLDOWN_S = 2.0
_MAX_COOLDOWN_S = 30.0
"""Bounds of the wait after a move in vain, which doubles with each: a choice stands still while it asks, and
nodes that are full do not have room in an instant."""


class MoveOutcome(StrEnum):
    """How a move ended; also a label of metrics and an attribute of traces."""

    MOVED = "moved"
    GONE_ON = "gone_on"
    """The other node gave no token in time, so the choice went on where it was."""
    NO_TARGET = "no_target"
    """No other node can take it, so the choice went on where it was."""


@dataclass(frozen=True, slots=True)
class MoveOrder:
    """Why a choice is to move."""

    reason: MoveReason
    target: str | None = None
    """Address of the node that it is to move to; None: wherever it would be placed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedMove:
    """One move, when it is over."""

    reason: MoveReason
    outcome: MoveOutcome
    source: str
    """Name of the node that the choice ran on."""
    target: str
    """Name of the other node; empty without one."""
    seconds: float
    """Time that the choice stood still, as far as this router sees it."""


class Moves:
    """Follows a choice's moves, one after another. Used in one event loop."""

    def __init__(
        self, metrics: RouterMetrics, clock: Clock, *, timeout_s: float, on_ended: Callable[[EndedMove], None]
    ) -> None:
        """Begin without a move.

        Args:
            metrics: count them.
            clock: tells how long they take.
            timeout_s: bound of the wait for the target's first token.
            on_ended: told of each move.
        """
        self._metrics = metrics
        self._clock = clock
        self._timeout_s = timeout_s
        self._on_ended = on_ended
        self._source = self._target = ""
        self._held_at_s = 0.0
        self._ended_at_s = -inf
        self._cooldown_s = 0.0
        """Time to leave after moves in vain; those for balance do not count."""
        self._giving_up: asyncio.TimerHandle | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._warming: asyncio.Task[bool] | None = None
        self.order: MoveOrder | None = None
        """Of the move under way, if somebody ordered one: a divided placement's is in the placement."""

    @property
    def since_last_s(self) -> float:
        """Time since the last move ended, whatever its outcome; without limit where there was none."""
        return self._clock.now() - self._ended_at_s

    @property
    def is_cooling_down(self) -> bool:
        """True for a while after moves in vain, so that a choice is not asked to move again and again."""
        return self.since_last_s < self._cooldown_s

    @property
    def is_balancing(self) -> bool:
        """True while a move for balance is under way."""
        return self.order is not None and self.order.reason.is_for_balance

    def ask(self, order: MoveOrder, hand_over: Callable[[], bool], prepare: Prepare | None) -> None:
        """Order a move, if none is under way.

        Args:
            order: why, and where to.
            hand_over: has the choice stand still; False where it cannot be asked to.
            prepare: makes the target ready for it first, while it goes on; None where nothing is to be done.
        """
        if self.order is not None:
            if not order.reason.is_for_balance:
                # It goes where it was to go, but elsewhere if that fails.
                self.order = MoveOrder(order.reason, self.order.target)
        elif prepare is not None:
            self.order = order
            self._preparing = asyncio.create_task(self._prepare(prepare, hand_over))
        elif hand_over():
            self.order = order

    def warm(self, prepare: Prepare) -> None:
        """Make the node ready on which a divided choice goes on, while the other one computes its prompt."""
        self._warming = asyncio.create_task(prepare())

    async def _prepare(self, prepare: Prepare, hand_over: Callable[[], bool]) -> None:
        is_ready = await prepare()
        self._preparing = None
        if self.order is None or self._giving_up is not None:
            return  # it stood still without being asked to, and is on its way
        # One that its node asked away moves in any case: the target makes itself ready while it stands still.
        if (self.order.reason.is_for_balance and not is_ready) or not hand_over():
            self.forget()
            self._ended_at_s = self._clock.now()

    def began(self, source: str, target: str, give_up: Callable[[], None]) -> None:
        """Take note that the choice stands still and its run at the target begins.

        Args:
            source: name of the node that holds it.
            target: name of the node that it moves to.
            give_up: called when the target has told no token in time.
        """
        self._source, self._target = source, target
        self._held_at_s = self._clock.now()
        self._giving_up = asyncio.get_running_loop().call_later(self._timeout_s, give_up)

    def ended(self, outcome: MoveOutcome) -> None:
        """Take note that the choice goes on, at the target or at the source."""
        now = self._clock.now()
        ended = EndedMove(
            reason=self.order.reason if self.order is not None else MoveReason.DIVIDED,
            outcome=outcome,
            source=self._source,
            target=self._target,
            seconds=now - self._held_at_s,
        )
        if outcome is MoveOutcome.MOVED:
            self._cooldown_s = 0.0
        elif not ended.reason.is_for_balance:
            self._cooldown_s = min(_MAX_COOLDOWN_S, max(_COOLDOWN_S, 2 * self._cooldown_s))
        self.forget()
        self._ended_at_s = now
        self._metrics.count_move(ended)
        self._on_ended(ended)

    def found_no_target(self, source: str) -> None:
        """Take note that the choice stood still and goes on, for there is no other node for it."""
        self._source, self._target = source, ""
        self._held_at_s = self._clock.now()
        self.ended(MoveOutcome.NO_TARGET)

    def forget(self) -> None:
        """Take note that no move is under way: it is over, or so is the run that was to move."""
        self.order = None
        for task in (self._preparing, self._warming):
            if task is not None:
                task.cancel()
        self._preparing = self._warming = None
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
