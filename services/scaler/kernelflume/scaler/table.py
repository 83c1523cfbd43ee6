"""The scaler's hold on the routing table: edits by compare-and-set, and the table back after a loss."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from kernelflume.core.errors import EpochConflictError, UnavailableError
from kernelflume.core.routing import RoutingSnapshot
from kernelflume.runtime.clock import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.runtime.clock import Clock
    from kernelflume.scaler.leader import Leadership
    from kernelflume.store.base import MembershipStore

logger = logging.getLogger(__name__)

_MAX_CONFLICTS = 20
"""More lost races in a row than this are a fault, not bad luck."""
_RETRY_INTERVAL_S = 0.2
_MAX_SEEN = 1000


class Table:
    """Reads and edits the routing table as the leader; remembers the newest snapshot it saw."""

    def __init__(self, store: MembershipStore, leadership: Leadership, clock: Clock) -> None:
        self._store = store
        self._leadership = leadership
        self._clock = clock
        self._known = RoutingSnapshot()
        self._seen: dict[str, None] = {}

    @property
    def seen_node_ids(self) -> frozenset[str]:
        """Ids of nodes that are or were in the table, as far as this scaler remembers.

        A new node takes none of them: a route or a log line that names a node then means one start only.
        """
        return frozenset(self._seen)

    @property
    def fencing_token(self) -> int:
        """Proof of leadership for other writes.

        Raises:
            ConflictError: another scaler leads.
        """
        return self._leadership.proof

    async def read(self, *, newest_adopted: int = 0) -> RoutingSnapshot:
        """Return the present snapshot, after writing it back if the store has lost it.

        Args:
            newest_adopted: newest epoch that a weight node is known to use. Where the table is behind it and
                nobody remembers what it was, the table goes on one epoch after it, because weight nodes never
                go back.

        Raises:
            UnavailableError: the store cannot be reached.
            ConflictError: the table would have to be written back, but another scaler leads.
        """
        known = self._known  # before the read: an edit that ends meanwhile is newer than what is read
        present = await self._store.read()
        if present.epoch < known.epoch:
            logger.warning(
                "the store lost the routing table (epoch %s): epoch %s is written back",
                present.epoch,
                known.epoch,
            )
            await self._restore(known)
        elif present.epoch < newest_adopted:
            logger.warning("the routing table goes on after epoch %s of its readers", newest_adopted)
            await self._restore(replace(present, epoch=newest_adopted + 1))
        else:
            self._know(present)
        return self._known

    async def edit(
        self, change: Callable[[RoutingSnapshot], RoutingSnapshot | None], *, patience_s: float = 0.0
    ) -> RoutingSnapshot:
        """Publish ``change`` of the present snapshot, again on the newer one if another writer was faster.

        Args:
            change: pure; returns the next snapshot, or None when nothing is left to change. It is called
                again after a publish whose answer was lost, and then sees its own work.
            patience_s: how long an unreachable store is tried again.

        Returns:
            The snapshot that holds the change.

        Raises:
            UnavailableError: the store could not be reached; the publish may or may not have happened.
            ConflictError: another scaler leads.
            KernelFlumeError: whatever ``change`` raises.
        """
        deadline = Deadline(self._clock, patience_s)
        num_conflicts = 0
        while True:
            try:
                present = await self.read()
                following = change(present)
                if following is None:
                    return present
                await self._store.publish(following, fencing_token=self._leadership.proof)
            except EpochConflictError:
                num_conflicts += 1
                if num_conflicts >= _MAX_CONFLICTS:
                    raise
            except UnavailableError:
                if deadline.expired:
                    raise
                await asyncio.sleep(_RETRY_INTERVAL_S)
            else:
                self._know(following)
                return following

    async def _restore(self, snapshot: RoutingSnapshot) -> None:
        await self._store.restore(snapshot, fencing_token=self._leadership.proof)
        self._know(snapshot)

    def _know(self, snapshot: RoutingSnapshot) -> None:
        if snapshot.epoch >= self._known.epoch:
            self._known = snapshot
        for node in snapshot.nodes:
            self._seen[node.node_id] = None
        for node_id in list(self._seen)[: max(0, len(self._seen) - _MAX_SEEN)]:
            del self._seen[node_id]
