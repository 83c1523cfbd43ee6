"""Attention nodes that have started before they are wanted, so that a launch only takes one of them.

A standby node has its memory faulted in and its kernels warm, holds its lease and serves, and is in no table:
what is left of a prewarm is connecting to it. It costs its memory for as long as it stands by.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kernelflume.core.errors import KernelFlumeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from kernelflume.scaler.providers.base import Provider

logger = logging.getLogger(__name__)

_RETRY_S = 5.0
"""Wait after a standby node could not be started."""


class StandbyProvider:
    """Another provider, with ``num_standby`` of its nodes started in advance. One event loop."""

    def __init__(self, provider: Provider, num_standby: int) -> None:
        self._provider = provider
        self._num_standby = num_standby
        self._standby: list[str] = []
        self._missing = asyncio.Event()
        self._missing.set()

    def set_num_standby(self, num_standby: int) -> None:
        """Have so many stand by from now on; ``keep`` starts what is missing and ends what is too much."""
        self._num_standby = num_standby
        self._missing.set()

    @property
    def adopts(self) -> bool:
        """As the provider behind it; see ``Provider.adopts``."""
        return self._provider.adopts

    @property
    def reuses_ids(self) -> bool:
        """As the provider behind it; see ``Provider.reuses_ids``."""
        return self._provider.reuses_ids

    def victim_order(self, node_ids: Sequence[str]) -> Sequence[str] | None:
        """As the provider behind it; see ``Provider.victim_order``."""
        return self._provider.victim_order(node_ids)

    @property
    def standby(self) -> tuple[str, ...]:
        """Ids of the nodes that stand by, the oldest first."""
        return tuple(self._standby)

    async def keep(self, taken: Callable[[], Awaitable[Collection[str]]], *, grace_s: float) -> None:
        """Start a node for each one that is missing, and end each that is too much, until cancelled.

        Args:
            taken: returns the ids that a new node must not have.
            grace_s: time that a node gets to end by itself.
        """
        while True:
            await self._missing.wait()
            self._missing.clear()
            try:
                while len(self._standby) < self._num_standby:
                    self._standby.append(await self._provider.launch({*await taken(), *self._standby}))
                while len(self._standby) > self._num_standby:
                    node_id = self._standby.pop()
                    logger.info("attention node %s need not stand by any more", node_id)
                    await self._provider.terminate(node_id, grace_s=grace_s)
            except KernelFlumeError as error:
                logger.warning("a standby attention node could not be started: %s", error)
            except Exception:
                # Whoever runs this must not end for it: attention nodes may be its children.
                logger.exception("a standby attention node could not be started")
            else:
                continue
            await asyncio.sleep(_RETRY_S)
            self._missing.set()

    async def launch(self, taken: Collection[str]) -> str:
        """Return the oldest node that stands by, or start one; see ``Provider.launch``."""
        self.ended()  # hand out none that is gone
        if self._standby:
            self._missing.set()
            return self._standby.pop(0)
        return await self._provider.launch(taken)

    def ended(self) -> Mapping[str, str]:
        """Return the nodes in use that ended unasked; see ``Provider.ended``.

        One that ended while it stood by is replaced by another, some time later.
        """
        ended = self._provider.ended()
        for node_id in [node_id for node_id in self._standby if node_id in ended]:
            logger.warning("standby attention node %s %s", node_id, ended[node_id])
            self._standby.remove(node_id)
            asyncio.get_running_loop().call_later(_RETRY_S, self._missing.set)
        return ended

    async def terminate(self, node_id: str, *, grace_s: float) -> None:
        """End a node; see ``Provider.terminate``."""
        await self._provider.terminate(node_id, grace_s=grace_s)

    async def close(self, *, grace_s: float) -> None:
        """End every node, those that stand by included."""
        self._standby.clear()
        await self._provider.close(grace_s=grace_s)
