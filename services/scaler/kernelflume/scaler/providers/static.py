"""Nodes that others start and end: a machine's service manager, a compose file, a person."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kernelflume.core.leases import NodeKind

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kernelflume.store.base import LeaseStore

_POLL_INTERVAL_S = 0.1


class StaticProvider:
    """Adopts nodes whose lease appears; never starts or ends a process."""

    adopts = True
    """Nodes come by themselves."""
    reuses_ids = True
    """Whoever starts nodes names them."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store

    def victim_order(self, node_ids: Sequence[str]) -> None:
        """Any node can be ended."""

    async def launch(self, taken: Collection[str]) -> str:
        """Wait for a living node outside ``taken`` and adopt it."""
        while True:
            for record in await self._store.living(NodeKind.ATTENTION):
                if record.node_id not in taken:
                    return record.node_id
            await asyncio.sleep(_POLL_INTERVAL_S)

    def ended(self) -> Mapping[str, str]:
        """Return nothing: only the lease tells that such a node has ended."""
        return {}

    async def terminate(self, node_id: str, *, grace_s: float) -> None:
        """Do nothing: the node runs on and may be adopted again."""

    async def close(self, *, grace_s: float) -> None:
        """Do nothing: the nodes run on."""
