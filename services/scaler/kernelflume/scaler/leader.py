"""Which of several scalers acts: leadership by a lease with a fencing token, and the scaler's own lease."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kernelflume.core.errors import ConflictError, UnavailableError
from kernelflume.runtime.clock import Deadline

if TYPE_CHECKING:
    from kernelflume.core.leases import LeaseRecord
    from kernelflume.runtime.clock import Clock
    from kernelflume.store.base import RoutingStore

logger = logging.getLogger(__name__)

_CONTACT_INTERVAL_S = 0.2


class Leadership:
    """Takes and keeps the leadership; its token goes with every publish, so that an old leader's is refused.

    An unreachable store does not end the leadership: nobody else can take it either, and whoever takes it
    after the outage is known by the token.
    """

    def __init__(self, store: RoutingStore, clock: Clock, *, ttl_s: float) -> None:
        """Make a leadership that is not held yet.

        Args:
            store: the store.
            clock: for the deadline of the first contact.
            ttl_s: how long a dead leader is waited for.
        """
        self._store = store
        self._clock = clock
        self._ttl_s = ttl_s
        self._interval_s = ttl_s / 3
        self._record: LeaseRecord | None = None
        self.token: int | None = None

    @property
    def proof(self) -> int:
        """The token, for a write that only the leader may do.

        Raises:
            ConflictError: this scaler does not lead. Without a token a write would not be checked at all.
        """
        if self.token is None:
            raise ConflictError("this scaler does not lead")
        return self.token

    async def acquire(self, record: LeaseRecord, *, contact_timeout_s: float) -> None:
        """Wait as a standby until this scaler leads.

        Args:
            record: this scaler's lease record, renewed along the way so that it can be found.
            contact_timeout_s: bound of the first contact with the store; later outages are waited for.

        Raises:
            UnavailableError: the store could not be reached in that time.
        """
        self._record = record
        deadline: Deadline | None = Deadline(self._clock, contact_timeout_s)
        while True:
            try:
                if await self._beat(record):
                    break
                if deadline is not None:
                    logger.info("another scaler leads: standing by")
                deadline = None
            except UnavailableError:
                if deadline is not None and deadline.expired:
                    raise
            await asyncio.sleep(_CONTACT_INTERVAL_S if deadline is not None else self._interval_s)
        logger.info("leading with fencing token %s", self.token)

    async def keep(self) -> None:
        """Renew for ever, after ``acquire``.

        Raises:
            ConflictError: another scaler leads now; this one must not act any more.
        """
        reachable = True
        while self._record is not None:
            await asyncio.sleep(self._interval_s)
            try:
                leading = await self._beat(self._record)
            except UnavailableError as error:
                if reachable:
                    logger.warning("the leadership cannot be renewed: %s", error)
                reachable = False
                continue
            if not leading:
                self.token = None
                raise ConflictError("another scaler has taken the leadership")
            reachable = True

    async def resign(self) -> None:
        """Give up leadership and lease, so that a standby takes over at once.

        Raises:
            UnavailableError: the store cannot be reached; both run out by themselves.
        """
        self.token = None
        record, self._record = self._record, None
        if record is not None:
            await self._store.resign(record.name)
            await self._store.release(record.kind, record.node_id, record.incarnation)

    async def _beat(self, record: LeaseRecord) -> bool:
        await self._store.renew(record, ttl_s=self._ttl_s)
        token = await self._store.lead(record.name, ttl_s=self._ttl_s)
        if token is not None:
            self.token = token
        return token is not None
