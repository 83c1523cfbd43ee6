"""This side of one link's lanes, whichever way its rows take between the captured graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np

    from kernelflume.core.regions import DeviceLanes
    from kernelflume.transport.wire import LaneData


class LaneEnd(Protocol):
    """Made and connected by the preparing thread, used by the step loop from ``open`` on."""

    @property
    def lanes(self) -> DeviceLanes:
        """This side's memory, as it is offered."""
        ...

    @property
    def is_open(self) -> bool:
        """True when steps can use the lanes."""
        ...

    @property
    def is_quiet(self) -> bool:
        """True when the attention node owes no write to this memory."""
        ...

    def connect(self, peer: str, answer: DeviceLanes) -> None:
        """Compare the connected attention node's lanes with these, and prepare what can be.

        Raises:
            HandshakeError: they are of another shape.
            PeerLostError: the node is gone.
        """
        ...

    def open(self, peer: str, answer: DeviceLanes) -> None:
        """Begin to use the lanes, once a write went each way.

        Raises:
            PeerLostError: the node is not connected.
            UnavailableError: its memory cannot be reached in this way.
        """
        ...

    def route(self, lane: int, *, num_query_rows: int, num_kv_rows: int) -> np.ndarray:
        """Return [1] of NODE_ROUTE: what the kernels need to know of the lane."""
        ...

    def advance(self, lane: int, *, queried: bool, stored: bool) -> None:
        """Take note that a step was launched."""
        ...

    def receive(self, notice: LaneData) -> None:
        """Take in a notice of the attention node's about a lane."""
        ...

    def close_views(self) -> None:
        """Stop using the attention node's memory; no step may be under way."""
        ...

    def release(self) -> None:
        """Deregister; the peer must have been disconnected."""
        ...
