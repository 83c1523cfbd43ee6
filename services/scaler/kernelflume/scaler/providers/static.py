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

    def __init__(self, store: LeaseStore) -> None:
        self._store = store
        self._adopted: dict[str, None] = {}

    @property
    def adopts(self) -> bool:
        """True: nodes come by themselves."""
        return True

    async def launch(self, taken: Collection[str]) -> str:
        """Wait for a living node outside ``taken`` and adopt it."""
        while True:
            for record in await self._store.living(NodeKind.ATTENTION):
                if record.node_id not in taken:
                    self._adopted[record.node_id] = None
                    return record.node_id
            await asyncio.sleep(_POLL_INTERVAL_S)

    def ended(self) -> Mapping[str, str]:
        """Return nothing: only the lease tells that such a node has ended."""
        return {}

    async def terminate(self, node_id: str, *, grace_s: float) -> None:  # noqa: ARG002 - the seam's signature
        """Let go of a node; it runs on and may be adopted again."""
        self._adopted.pop(node_id, None)

    async def list(self) -> Sequence[str]:
        """Return the adopted nodes."""
        return list(self._adopted)

    async def close(self, *, grace_s: float) -> None:  # noqa: ARG002 - the seam's signature
        """Let go of all nodes; they run on."""
        self._adopted.clear()
