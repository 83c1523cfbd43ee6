"""The in-memory twin of the transport: agents of one process that copy memory, for unit tests only."""

from __future__ import annotations

import ctypes
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelflume.core.errors import HandshakeError, LifecycleError, PeerLostError, UnavailableError
from kernelflume.core.regions import MemoryRegion
from kernelflume.transport.base import Notice, Write, WritePlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np


class LoopbackNetwork:
    """The agents that can reach each other; ``cut`` makes one vanish as a killed process would."""

    def __init__(self) -> None:
        self.agents: dict[str, LoopbackTransport] = {}

    def cut(self, name: str) -> None:
        """Take an agent away without telling anyone."""
        self.agents.pop(name, None)


@dataclass(frozen=True, slots=True)
class LoopbackPlan:
    """Writes kept as they were given."""

    peer: str
    writes: tuple[Write, ...]
    silent: bool = False

    def __len__(self) -> int:
        return len(self.writes)


class LoopbackTransport:
    """One agent; see ``transport.base.Transport``."""

    kind = "loopback 1"

    def __init__(self, name: str, network: LoopbackNetwork) -> None:
        self.name = name
        self._network = network
        self._regions: dict[int, MemoryRegion] = {}
        self._peers: set[str] = set()
        self._inbox: deque[Notice] = deque()
        network.agents[name] = self

    def register(self, memory: np.ndarray) -> MemoryRegion:
        """Remember an array's address."""
        region = MemoryRegion(memory.ctypes.data, memory.nbytes)
        self._regions[region.address] = region
        return region

    def register_device(self, address: int, num_bytes: int, device: int) -> MemoryRegion:
        """Refuse: the twin copies between arrays."""
        raise UnavailableError(
            f"loopback reaches no GPU: {num_bytes} bytes at {address:#x} of device {device}"
        )

    def deregister(self, region: MemoryRegion) -> None:
        """Forget an array."""
        self._regions.pop(region.address, None)

    def metadata(self) -> bytes:
        """Return the agent's name."""
        return self.name.encode()

    def connect(self, peer: str, metadata: bytes) -> None:
        """Remember a peer."""
        if metadata.decode(errors="replace") != peer:
            raise HandshakeError(f"metadata is not that of {peer}")
        self._peers.add(peer)

    def disconnect(self, peer: str) -> None:
        """Forget a peer."""
        self._peers.discard(peer)

    def plan_writes(self, peer: str, writes: Sequence[Write], *, silent: bool = False) -> LoopbackPlan:
        """Check that every write stays inside its regions, and keep them."""
        for write in writes:
            if (
                write.local_offset + write.num_bytes > write.local.num_bytes
                or write.remote_offset + write.num_bytes > write.remote.num_bytes
            ):
                raise LifecycleError("a write leaves its region")
        return LoopbackPlan(peer, tuple(writes), silent)

    def post(self, plan: WritePlan, index: int, notice: bytes = b"") -> None:
        """Copy at once."""
        if not isinstance(plan, LoopbackPlan):
            raise LifecycleError("a plan of another transport")
        if plan.silent == bool(notice):
            raise LifecycleError("a post needs a notice, unless its write is silent")
        target = self._reach(plan.peer)
        write = plan.writes[index]
        if write.remote.address not in target._regions:  # noqa: SLF001 - the twin's other end
            raise PeerLostError(plan.peer, "memory is not registered there")
        ctypes.memmove(
            write.remote.address + write.remote_offset,
            write.local.address + write.local_offset,
            write.num_bytes,
        )
        if notice:
            target._inbox.append(Notice(self.name, notice))  # noqa: SLF001

    def is_done(self, plan: WritePlan, index: int) -> bool:
        """Copies are done when posted."""
        del index
        self._reach(plan.peer)
        return True

    def notify(self, peer: str, notice: bytes) -> None:
        """Deliver at once."""
        self._reach(peer)._inbox.append(Notice(self.name, notice))  # noqa: SLF001

    def poll(self) -> list[Notice]:
        """Return what arrived."""
        # One by one: what another thread posts between a copy and a clear would be lost.
        return [self._inbox.popleft() for _ in range(len(self._inbox))]

    def close(self) -> None:
        """Leave the network."""
        self._network.cut(self.name)

    def _reach(self, peer: str) -> LoopbackTransport:
        target = self._network.agents.get(peer)
        if target is None or peer not in self._peers:
            raise PeerLostError(peer, "not reachable")
        return target
