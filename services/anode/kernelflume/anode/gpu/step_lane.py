"""What captured graphs of this node are made of: a lane's share of a step, whoever moves its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kernelflume.anode.gpu.decode import PagedDecode
    from kernelflume.anode.gpu.lane import DeviceLane


class StepLane(Protocol):
    """Enqueues on the current stream, also while a graph is being captured."""

    @property
    def lane(self) -> DeviceLane:
        """The lane's memory."""
        ...

    def attend(self, layer: int, decode: PagedDecode) -> None:
        """Wait for the queries of one layer and attend."""
        ...

    def answer(self, num_rows: int) -> None:
        """Let go what ``attend`` computed last."""
        ...

    def end(self) -> None:
        """Finish the step."""
        ...
