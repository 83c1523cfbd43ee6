"""Moves running choices between weight nodes for balance, a few at a time."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING

from kernelflume.router.placement.balance import balance

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.router.placement.balance import BalanceParameters
    from kernelflume.router.roster import Roster
    from kernelflume.router.weightnodes import WeightNodes

logger = logging.getLogger(__name__)


class Balancer:
    """Looks at the load of weight nodes again and again. Used in one event loop."""

    def __init__(
        self,
        parameters: BalanceParameters,
        nodes: WeightNodes,
        roster: Roster,
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Make a balancer that has not looked yet.

        Args:
            parameters: when choices move, and how many.
            nodes: where they can run.
            roster: those that do.
            draw: returns random numbers from [0, 1).
        """
        self._parameters = parameters
        self._nodes = nodes
        self._roster = roster
        self._draw = draw
        self._has_moved = False

    async def run(self, *, interval_s: float) -> None:
        """Look for ever, ``interval_s`` seconds apart: not more often than nodes are asked for their load."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                self.look()
            except Exception:
                # Requests are served without balance too.
                logger.exception("balancing failed")

    def look(self) -> None:
        """Order moves where they are due.

        None are ordered while others are under way, nor at the look after: nodes have told their load with
        them before the next one.
        """
        had_moved, self._has_moved = self._has_moved, self._roster.is_balancing
        if had_moved or self._has_moved:
            return
        choices = self._roster.running()
        for move in balance(self._nodes.views(), choices, self._parameters, draw=self._draw()):
            logger.info(
                "a choice moves for balance",
                extra={
                    "choice_id": move.choice_id,
                    "source": move.source,
                    "target": move.target,
                    "reason": move.reason,
                },
            )
            self._roster.move(move)
            self._has_moved = True
