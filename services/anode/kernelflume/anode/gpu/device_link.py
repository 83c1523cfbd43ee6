"""The lanes through which a weight node's kernels reach this node's, and the launching of steps on them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

from kernelflume.anode.gpu.graph import LinkGraphs
from kernelflume.anode.gpu.lane import PARITIES, DeviceLane, LaneProgram
from kernelflume.anode.gpu.work import NO_WORK
from kernelflume.core.errors import HandshakeError, PeerLostError
from kernelflume.core.regions import DeviceLanes, LanePath
from kernelflume.cuda.exchange import ExchangeKernels
from kernelflume.cuda.status import StatusWord
from kernelflume.tensor.device import architecture
from kernelflume.transport.lanes import NUM_APPEND_SLOTS, LaneLayout, graph_buckets
from kernelflume.transport.memory import register

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.anode.gpu.device_pages import DevicePages
    from kernelflume.anode.gpu.work import LaneWork
    from kernelflume.transport.nixl import NixlTransport
    from kernelflume.transport.wire import LaneData

WAIT_TIMEOUT_S = 20.0
"""A kernel that waits this long gives up: longer than any weight node's step."""


class DeviceLink:
    """See ``GraphLink``."""

    is_driven = False

    def __init__(self, offer: DeviceLanes, pages: DevicePages, transport: NixlTransport) -> None:
        """Allocate and register lanes of the size that the weight node offers, and capture their graphs.

        Raises:
            HandshakeError: the offer is not of this version.
            ConfigurationError: the kernels cannot be built or run here.
        """
        geometry, device = pages.geometry, pages.pages.device
        self.layout = LaneLayout(geometry, offer.max_rows)
        if (
            offer.path != LanePath.DEVICE
            or any(len(regions) != 2 for regions in offer.lanes)
            or not offer.lanes
        ):
            raise HandshakeError("device lanes need two regions each")
        self.files_in_layer = offer.query_first != "local"
        """Keys and values come in every layer, and belong to the step's own attention."""
        self._offer = offer
        self._pages = pages
        self._transport = transport
        self._status = StatusWord(device)
        self._kernels = ExchangeKernels(geometry, architecture=architecture(device), timeout_s=WAIT_TIMEOUT_S)
        self._lanes = [DeviceLane.allocate(self.layout, device) for _ in offer.lanes]
        self._regions = [
            tuple(register(transport, memory) for memory in (lane.queries, lane.appends, lane.counters))
            for lane in self._lanes
        ]
        self._sources = [
            tuple(register(transport, memory) for memory in (lane.out, lane.staged_lse))
            for lane in self._lanes
        ]
        self._views: list[int] = []
        self._peer = ""
        self._programs = [
            LaneProgram(
                kernels=self._kernels,
                lane=lane,
                pages=pages,
                out_view=transport.local_view(out),
                lse_view=transport.local_view(lse),
                status=self._status.address,
                waits_in_layer=self.files_in_layer,
            )
            for lane, (out, lse) in zip(self._lanes, self._sources, strict=True)
        ]
        self._graphs = LinkGraphs([self._programs] * PARITIES, pages, max_rows=offer.max_rows)
        for num_lanes in graph_buckets(len(offer.lanes)):
            for rows in graph_buckets(offer.max_rows):
                self._graphs.warm(num_lanes, rows)
        self._num_steps = 0
        self._parities: dict[int, int] = {}
        """Of the latest step of each parity: the counters tell of steps, their numbers may leave gaps."""
        self._num_appends = [0] * len(offer.lanes)

    @property
    def lanes(self) -> DeviceLanes:
        """This side's memory."""
        return DeviceLanes(self.layout.max_rows, self._offer.query_first, tuple(self._regions))

    @property
    def num_lanes(self) -> int:
        """Microbatches that may be in flight."""
        return len(self._lanes)

    @property
    def num_bytes(self) -> int:
        """Size of the registered memory."""
        regions = [region for lane in (*self._regions, *self._sources) for region in lane]
        return sum(region.num_bytes for region in regions)

    @property
    def is_open(self) -> bool:
        """True when this side's kernels can reach the weight node's memory."""
        return bool(self._views)

    @property
    def is_idle(self) -> bool:
        """True when no launched step is under way."""
        return self._graphs.is_idle

    def has_ended(self, step: int) -> bool:
        """True when a step that was launched is done."""
        parity = self._parities.get(step)
        return parity is None or self._graphs.is_free(parity)

    def can_launch(self, step: int) -> bool:
        """Always: whatever a launch waits for comes without this process."""
        del step
        return True

    def receive(self, notice: LaneData) -> None:
        """Refuse: kernels tell by counters.

        Raises:
            HandshakeError: always.
        """
        raise HandshakeError(f"{notice.kind.name} for lanes of the device path")

    def drive(self) -> bool:
        """Nothing: the graphs need no help."""
        return False

    def release(self, step: int) -> None:
        """Nothing: a step that was given up gets all of its queries nevertheless."""

    def open(self, weight_node: str) -> None:
        """Look the weight node's memory up, once a write went each way.

        Raises:
            PeerLostError: the weight node is not connected.
            UnavailableError: kernels cannot reach it.
        """
        self._peer = weight_node
        self._views = [self._transport.remote_view(weight_node, regions) for regions in self._offer.lanes]
        for lane, view in zip(self._lanes, self._views, strict=True):
            lane.reset_state(view)

    def launch(self, work: Sequence[LaneWork], step: int) -> None:
        """Enqueue one step; nothing waits but for the step before the last."""
        busy = [index for index, (table, slots) in enumerate(work) if len(table.last_page_len) or len(slots)]
        if not busy:
            return
        num_lanes = next(count for count in graph_buckets(len(self._lanes)) if count > busy[-1])
        taken = [*work, *itertools.repeat(NO_WORK, num_lanes)][:num_lanes]
        parity = self._num_steps % PARITIES
        self._num_steps += 1
        self._parities = {before: other for before, other in self._parities.items() if other != parity}
        self._parities[step] = parity
        with torch.inference_mode(), torch.cuda.stream(self._graphs.stream):
            self._graphs.begin(parity)
            for index, (table, slots) in enumerate(taken):
                self._lanes[index].upload_step(
                    parity,
                    num_rows=len(table.last_page_len),
                    slots=slots,
                    append_slot=self._num_appends[index] % NUM_APPEND_SLOTS,
                )
                # The weight node fills the slots of the append region in turn.
                self._num_appends[index] += bool(len(slots))
            most = max(len(table.last_page_len) for table, _ in taken)
            if most:
                tables = [table for table, _ in taken]
                self._graphs.launch(parity, self.layout.graph_rows(most), tables)
            if not self.files_in_layer:
                for program, (_, slots) in zip(self._programs, taken, strict=False):
                    if len(slots):
                        program.file_step(len(slots))
            self._graphs.end(parity)

    def check(self) -> None:
        """Look whether a wait failed.

        Raises:
            PeerLostError: one did; the lanes cannot be used any more.
        """
        failure = self._status.failure
        if failure is not None:
            raise PeerLostError(
                self._peer, f"its {failure.kind.name.lower()} did not come within {WAIT_TIMEOUT_S:g} s"
            )

    def close_views(self) -> None:
        """Give up whatever is under way and forget the weight node's memory."""
        self._status.abort()
        self._graphs.stream.synchronize()
        for view in self._views:
            self._transport.release_view(view)
        self._views = []

    def close(self) -> None:
        """Deregister; the weight node must have been disconnected."""
        for lane in (*self._regions, *self._sources):
            for region in lane:
                self._transport.deregister(region)
