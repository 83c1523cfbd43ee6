"""The data plane's seam: one-sided writes with a notice, between memory that both sides registered before.

A ``Transport`` belongs to one thread at a time, the step loop's, except ``connect`` and ``plan_writes``,
which a preparing thread may call beside it. Nothing here blocks: a post returns once it is under way, and
whoever waits polls, with a deadline of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from kernelflume.core.regions import MemoryRegion


class Notice(NamedTuple):
    """A message that arrived, after the data it was posted with."""

    peer: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Write:
    """One prepared copy: ``num_bytes`` from the start of ``local`` + offset to ``remote`` + offset."""

    local: MemoryRegion
    local_offset: int
    remote: MemoryRegion
    remote_offset: int
    num_bytes: int


class WritePlan(Protocol):
    """Prepared writes to one peer, posted by index; made once a pair and released with the connection."""

    @property
    def peer(self) -> str:
        """Name of the peer."""
        ...

    def __len__(self) -> int:
        """Return the number of writes."""
        ...


class Transport(Protocol):
    """An agent that moves bytes between registered memory of two processes.

    Completion means that the source may be reused, and that the data is visible at the target. The target
    learns of it by the notice, which is delivered after that; of a silent write by whatever it is told later.
    Notices of one peer may come in another order than posted: each carries its own step or counter.
    """

    name: str
    kind: str
    """Kind and version, compared in the handshake, such as ``nixl 1.5.1``."""

    def register(self, memory: np.ndarray) -> MemoryRegion:
        """Make a contiguous array usable on both ends of writes; it must outlive the transport."""
        ...

    def register_device(self, address: int, num_bytes: int, device: int) -> MemoryRegion:
        """Do the same for memory of a GPU.

        Raises:
            UnavailableError: this transport reaches host memory alone.
        """
        ...

    def deregister(self, region: MemoryRegion) -> None:
        """Undo ``register`` after every peer that could write there was disconnected or drained."""
        ...

    def metadata(self) -> bytes:
        """Return what a peer needs to connect; take it after the last ``register`` it is to know."""
        ...

    def connect(self, peer: str, metadata: bytes) -> None:
        """Make ``peer`` reachable, replacing an earlier connection of the same name.

        Raises:
            HandshakeError: the metadata is another agent's.
        """
        ...

    def disconnect(self, peer: str) -> None:
        """Release every plan of ``peer`` and forget it; safe when it is unknown or dead."""
        ...

    def plan_writes(self, peer: str, writes: Sequence[Write], *, silent: bool = False) -> WritePlan:
        """Prepare writes to ``peer``'s registered memory.

        Silent ones bring no notice, and are cheap to have many of: each is completed when first posted.
        """
        ...

    def post(self, plan: WritePlan, index: int, notice: bytes = b"") -> None:
        """Start one prepared write; ``notice`` reaches the peer after the data, and is empty for silent ones.

        Raises:
            PeerLostError: the peer is gone.
            LifecycleError: the same write is still under way, or a notice is missing or too many.
        """
        ...

    def is_done(self, plan: WritePlan, index: int) -> bool:
        """True when the write's source may be reused, also when it was never posted.

        Raises:
            PeerLostError: the peer is gone.
        """
        ...

    def notify(self, peer: str, notice: bytes) -> None:
        """Send a notice without data.

        Raises:
            PeerLostError: the peer is gone.
        """
        ...

    def poll(self) -> list[Notice]:
        """Make progress and return what arrived since the last call; a dead peer shows nowhere here.

        A write that was not done at once, and its notice with it, goes on only while its poster polls.
        """
        ...

    def close(self) -> None:
        """Disconnect every peer and release the agent."""
        ...
