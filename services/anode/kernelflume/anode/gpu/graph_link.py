"""The lanes of one weight node whose steps run as captured graphs here, on either path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.anode.gpu.work import LaneWork
    from kernelflume.core.regions import DeviceLanes
    from kernelflume.transport.lanes import LaneLayout
    from kernelflume.transport.wire import LaneData


class GraphLink(Protocol):
    """Made by a preparing thread, used by the step loop from ``open`` on."""

    layout: LaneLayout
    files_in_layer: bool
    """Keys and values come in every layer, and belong to the step's own attention."""
    is_driven: bool
    """Steps under way need the step loop, by ``receive`` and ``drive``."""

    @property
    def lanes(self) -> DeviceLanes:
        """This side's memory."""
        ...

    @property
    def num_lanes(self) -> int:
        """Microbatches that may be in flight."""
        ...

    @property
    def num_bytes(self) -> int:
        """Size of the registered memory."""
        ...

    @property
    def is_open(self) -> bool:
        """True when partials can reach the weight node's memory."""
        ...

    @property
    def is_idle(self) -> bool:
        """True when no launched step may still write keys and values to pages."""
        ...

    def has_ended(self, step: int) -> bool:
        """True when a step that was launched writes no keys and values to pages any more."""
        ...

    def open(self, weight_node: str) -> None:
        """Reach the weight node's memory, once a write went each way.

        Raises:
            PeerLostError: the weight node is not connected.
            UnavailableError: its memory cannot be reached in this way.
        """
        ...

    def can_launch(self, step: int) -> bool:
        """True when launching a step would not wait for something that this thread must do."""
        ...

    def launch(self, work: Sequence[LaneWork], step: int) -> None:
        """Enqueue a step, behind waits for its queries."""
        ...

    def receive(self, notice: LaneData) -> None:
        """Take in that data of a step has arrived.

        Raises:
            HandshakeError: the link has no such lane, layer or path.
        """
        ...

    def drive(self) -> bool:
        """Pass on what a step under way has computed; False when there was nothing.

        Raises:
            PeerLostError: the weight node is gone, or did not send in time what a step waits for.
        """
        ...

    def check(self) -> None:
        """Look whether a wait failed.

        Raises:
            PeerLostError: one did; the lanes cannot be used any more.
        """
        ...

    def release(self, step: int) -> None:
        """Let a step that was given up run to its end."""
        ...

    def close_views(self) -> None:
        """Give up whatever is under way and forget the weight node's memory."""
        ...

    def close(self) -> None:
        """Deregister; the weight node must have been disconnected."""
        ...
