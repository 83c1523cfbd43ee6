"""This side of the lanes through which kernels of the weight node and of one attention node exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kernelflume.core.errors import HandshakeError
from kernelflume.core.regions import DeviceLanes, LanePath
from kernelflume.cuda.exchange import COUNTERS_BYTES, NODE_ROUTE
from kernelflume.transport.lanes import NUM_APPEND_SLOTS
from kernelflume.transport.memory import allocate_on, register

if TYPE_CHECKING:
    import torch

    from kernelflume.transport.lanes import LaneLayout
    from kernelflume.transport.nixl import NixlTransport
    from kernelflume.transport.wire import LaneData


class DeviceEnd:
    """Registered memory of one link's lanes, and how far their counters are.

    The kernels move the counters in device memory on; what is kept here follows them, for the next upload.
    Made by the preparing thread, used by the step loop from ``open`` on.
    """

    def __init__(
        self,
        layout: LaneLayout,
        *,
        num_lanes: int,
        query_first: str,
        transport: NixlTransport,
        device: torch.device,
    ) -> None:
        """Allocate and register."""
        self._layout = layout
        self._query_first = query_first
        self._transport = transport
        self._partials = [allocate_on(device, layout.partial_region_bytes) for _ in range(num_lanes)]
        self._counters = [allocate_on(device, COUNTERS_BYTES) for _ in range(num_lanes)]
        self._regions = [
            (register(transport, partials), register(transport, counters))
            for partials, counters in zip(self._partials, self._counters, strict=True)
        ]
        self._views: list[int] = []
        self._num_partials = [0] * num_lanes
        self._num_appends = [0] * num_lanes

    @property
    def lanes(self) -> DeviceLanes:
        """This side's memory."""
        return DeviceLanes(self._layout.max_rows, self._query_first, tuple(self._regions))

    @property
    def is_open(self) -> bool:
        """True when kernels can reach the attention node's memory."""
        return bool(self._views)

    @property
    def is_quiet(self) -> bool:
        """Nobody knows of single writes: a step that ended has them all."""
        return True

    def connect(self, peer: str, answer: DeviceLanes) -> None:
        """Compare the attention node's lanes with these.

        Raises:
            HandshakeError: they are of another shape.
        """
        del peer
        if answer.path != LanePath.DEVICE:
            raise HandshakeError(
                f"lanes of the {answer.path} path do not fit those of the {LanePath.DEVICE} path"
            )
        sizes = [[region.num_bytes for region in regions] for regions in answer.lanes]
        layout = self._layout
        wanted = [layout.query_region_bytes, layout.append_region_bytes, COUNTERS_BYTES]
        if sizes != [wanted] * len(self._regions):
            raise HandshakeError(f"device lanes have regions of {sizes} bytes; {wanted} each are needed")

    def open(self, peer: str, answer: DeviceLanes) -> None:
        """Look the attention node's memory up, once a write went each way.

        Raises:
            PeerLostError: the node is not connected.
            UnavailableError: kernels cannot reach it.
        """
        self._views = [self._transport.remote_view(peer, regions) for regions in answer.lanes]

    def route(self, lane: int, *, num_query_rows: int, num_kv_rows: int) -> np.ndarray:
        """Return [1] of NODE_ROUTE: the lane, with the counters of the next step."""
        partials = self._partials[lane].data_ptr()
        record = np.zeros(1, NODE_ROUTE)
        record["remote"] = self._views[lane]
        record["partial_out"] = partials
        record["partial_lse"] = partials + self._layout.lse_offset(self._layout.max_rows)
        record["partial_counter"] = self._counters[lane].data_ptr()
        record["partials_before"] = self._num_partials[lane]
        record["append_offset"] = self._num_appends[lane] % NUM_APPEND_SLOTS * self._layout.append_slot_bytes
        record["num_query_rows"] = num_query_rows
        record["num_kv_rows"] = num_kv_rows
        return record

    def advance(self, lane: int, *, queried: bool, stored: bool) -> None:
        """Take note of one step, as ``advance_routes`` does on the device."""
        if queried:
            self._num_partials[lane] += self._layout.geometry.num_layers
        if stored:
            self._num_appends[lane] += 1

    def receive(self, notice: LaneData) -> None:
        """Ignore it: kernels tell by counters."""

    def close_views(self) -> None:
        """Forget the attention node's memory; no step may be under way."""
        for view in self._views:
            self._transport.release_view(view)
        self._views = []

    def release(self) -> None:
        """Deregister; the peer must have been disconnected."""
        for regions in self._regions:
            for region in regions:
                self._transport.deregister(region)
