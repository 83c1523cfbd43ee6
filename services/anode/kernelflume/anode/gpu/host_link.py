"""The link of a weight node on the host path: captured graphs here, and this process between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelflume.anode.gpu.host_lanes import HostLanes
from kernelflume.core.errors import HandshakeError
from kernelflume.core.regions import DeviceLanes, LanePath
from kernelflume.runtime.clock import MonotonicClock
from kernelflume.transport.lanes import LaneLayout, graph_buckets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.anode.gpu.device_pages import DevicePages
    from kernelflume.anode.gpu.work import LaneWork
    from kernelflume.core.regions import MemoryRegion
    from kernelflume.transport.base import Transport
    from kernelflume.transport.wire import LaneData


class HostLink:
    """See ``GraphLink``."""

    is_driven = True

    def __init__(self, offer: DeviceLanes, pages: DevicePages, transport: Transport) -> None:
        """Allocate and register lanes of the size that the weight node offers, and capture their graphs.

        Raises:
            HandshakeError: the offer is not of this version.
            ConfigurationError: the kernels cannot be built or run here.
        """
        self.layout = LaneLayout(pages.geometry, offer.max_rows)
        sizes = {region.num_bytes for regions in offer.lanes for region in regions}
        if (
            offer.path != LanePath.HOST
            or any(len(regions) != 1 for regions in offer.lanes)
            or sizes != {self.layout.graph_partial_bytes(offer.max_rows)}
        ):
            raise HandshakeError("lanes of the host path need one region each, for partials")
        self.files_in_layer = offer.query_first != "local"
        self._offer = offer
        self._transport = transport
        self._lanes = HostLanes(
            self.layout,
            pages,
            transport,
            num_lanes=len(offer.lanes),
            in_layer=self.files_in_layer,
            clock=MonotonicClock(),
        )
        for num_lanes in graph_buckets(len(offer.lanes)):
            for rows in graph_buckets(offer.max_rows):
                self._lanes.warm(num_lanes, rows)

    @property
    def lanes(self) -> DeviceLanes:
        """This side's memory."""
        regions = tuple(self._lanes.regions)
        return DeviceLanes(self.layout.max_rows, self._offer.query_first, regions, LanePath.HOST)

    @property
    def num_lanes(self) -> int:
        """Microbatches that may be in flight."""
        return len(self._offer.lanes)

    @property
    def num_bytes(self) -> int:
        """Size of the registered memory."""
        return sum(region.num_bytes for region in self._registered())

    @property
    def is_open(self) -> bool:
        """True when partials can be posted."""
        return self._lanes.is_open

    @property
    def is_idle(self) -> bool:
        """True when no step is under way."""
        return self._lanes.is_idle

    def has_ended(self, step: int) -> bool:
        """True when a step that was launched is done."""
        return self._lanes.has_ended(step)

    def open(self, weight_node: str) -> None:
        """Prepare the writes of partials."""
        self._lanes.connect(weight_node, self._offer.lanes)

    def can_launch(self, step: int) -> bool:
        """True when the last step of the same parity is done."""
        return self._lanes.can_launch(step)

    def launch(self, work: Sequence[LaneWork], step: int) -> None:
        """Enqueue a step."""
        self._lanes.launch(work, step)

    def receive(self, notice: LaneData) -> None:
        """Set the flag of what has arrived."""
        self._lanes.receive(notice)

    def drive(self) -> bool:
        """Post what is computed."""
        return self._lanes.drive()

    def check(self) -> None:
        """Nothing fails but in ``drive``."""

    def release(self, step: int) -> None:
        """Let a step that was given up run to its end."""
        self._lanes.release(step)

    def close_views(self) -> None:
        """Give up whatever is under way."""
        self._lanes.close_views()

    def close(self) -> None:
        """Deregister."""
        for region in self._registered():
            self._transport.deregister(region)

    def _registered(self) -> list[MemoryRegion]:
        return [region for regions in self._lanes.regions for region in regions] + self._lanes.sources
