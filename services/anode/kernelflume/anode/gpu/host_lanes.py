"""The lanes of a link on the host path: memory, captured graphs, and the posts between them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

from kernelflume.anode.gpu.graph import LinkGraphs
from kernelflume.anode.gpu.host_lane import HostLane
from kernelflume.anode.gpu.host_program import HostLaneProgram
from kernelflume.anode.gpu.lane import PARITIES, DeviceLane
from kernelflume.anode.gpu.work import NO_WORK
from kernelflume.core.errors import HandshakeError, PeerLostError
from kernelflume.cuda.exchange import ExchangeKernels
from kernelflume.cuda.flags import StepFlags
from kernelflume.cuda.memops import StreamMemops
from kernelflume.runtime.clock import Clock, Deadline
from kernelflume.tensor.device import architecture
from kernelflume.transport.base import Write
from kernelflume.transport.lanes import NUM_APPEND_SLOTS, LaneLayout, graph_buckets
from kernelflume.transport.memory import allocate_on, register
from kernelflume.transport.wire import Kind, LaneData

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.anode.gpu.device_pages import DevicePages
    from kernelflume.anode.gpu.work import LaneWork
    from kernelflume.core.regions import MemoryRegion
    from kernelflume.transport.base import Transport, WritePlan

WAIT_TIMEOUT_S = 20.0
"""A step that waits this long for its weight node is given up: longer than any weight node's step."""


class HostLanes:
    """Memory, graphs and progress of all lanes; it launches and drives, and knows no pool or plan."""

    def __init__(
        self,
        layout: LaneLayout,
        pages: DevicePages,
        transport: Transport,
        *,
        num_lanes: int,
        in_layer: bool,
        clock: Clock,
    ) -> None:
        """Allocate and register.

        Raises:
            ConfigurationError: the kernels cannot be built or run here.
        """
        geometry, device = layout.geometry, pages.pages.device
        self._layout = layout
        self._transport = transport
        self._in_layer = in_layer
        self._clock = clock
        self._peer = ""
        self._deadline: Deadline | None = None
        """Of the step under way; None while there is none."""
        self.memory = [DeviceLane.allocate(layout, device) for _ in range(num_lanes)]
        self.regions = [
            (register(transport, lane.queries), register(transport, lane.appends)) for lane in self.memory
        ]
        partials = [
            allocate_on(device, layout.graph_partial_bytes(layout.max_rows)) for _ in range(num_lanes)
        ]
        self.sources = [register(transport, memory) for memory in partials]
        self._plans: list[WritePlan] = []
        flags = [[StepFlags(geometry.num_layers) for _ in range(PARITIES)] for _ in range(num_lanes)]
        self._progress = [
            HostLane(
                index,
                lane_flags,
                num_layers=geometry.num_layers,
                in_layer=in_layer,
                post=self._post,
            )
            for index, lane_flags in enumerate(flags)
        ]
        kernels = ExchangeKernels(geometry, architecture=architecture(device), timeout_s=WAIT_TIMEOUT_S)
        memops = StreamMemops()
        self._programs = [
            [
                HostLaneProgram(
                    kernels=kernels,
                    memops=memops,
                    lane=lane,
                    pages=pages,
                    partials=lane_partials,
                    flags=lane_flags[parity],
                    waits_in_layer=in_layer,
                )
                for lane, lane_partials, lane_flags in zip(self.memory, partials, flags, strict=True)
            ]
            for parity in range(PARITIES)
        ]
        self._graphs = LinkGraphs(self._programs, pages, max_rows=layout.max_rows)
        for lane in self.memory:
            lane.reset_state(0)
        for program in self._programs[0]:
            program.warm()

    @property
    def is_open(self) -> bool:
        """True when partials can be posted."""
        return bool(self._plans)

    @property
    def is_idle(self) -> bool:
        """True when no step is under way."""
        return self.is_answered and self._graphs.is_idle

    @property
    def is_answered(self) -> bool:
        """True when every partial of the launched steps was posted."""
        return all(lane.is_answered for lane in self._progress)

    @property
    def waits_for(self) -> str:
        """What the first lane's step under way waits for, for errors."""
        return self._progress[0].waits_for

    def warm(self, num_lanes: int, num_rows: int) -> None:
        """Capture the steps of so many lanes and rows."""
        self._graphs.warm(num_lanes, num_rows)

    def connect(self, peer: str, regions: Sequence[Sequence[MemoryRegion]]) -> None:
        """Prepare the writes of partials, into one region a lane, and make one each.

        The first write maps the weight node's memory. While a step waits that could take until the step ends.

        Raises:
            PeerLostError: the weight node is not connected.
        """
        layout = self._layout
        self._peer = peer
        self._plans = [
            self._transport.plan_writes(
                peer,
                [Write(source, 0, target, 0, layout.graph_partial_bytes(rows)) for rows in layout.buckets],
            )
            for source, (target,) in zip(self.sources, regions, strict=True)
        ]
        for lane in range(len(self.memory)):
            self._post(1, LaneData(Kind.LANE_PARTIAL, lane, layer=0, step=0))

    def can_launch(self, step: int) -> bool:
        """True when the last step of the same parity is done."""
        return self._graphs.is_free(step % PARITIES)

    def has_ended(self, step: int) -> bool:
        """True when a launched step is done; of two of one parity the newer counts."""
        return self._graphs.is_free(step % PARITIES)

    def launch(self, work: Sequence[LaneWork], step: int) -> None:
        """Enqueue one step; ``can_launch`` must hold, for a wait here would be for this thread itself."""
        busy = [index for index, (table, slots) in enumerate(work) if len(table.last_page_len) or len(slots)]
        if not busy:
            return
        num_lanes = next(count for count in graph_buckets(len(self.memory)) if count > busy[-1])
        taken = [*work, *itertools.repeat(NO_WORK, num_lanes)][:num_lanes]
        parity = step % PARITIES
        if self._deadline is None:
            self._deadline = Deadline(self._clock, WAIT_TIMEOUT_S)
        programs = self._programs[parity]
        with torch.inference_mode(), torch.cuda.stream(self._graphs.stream):
            self._graphs.begin(parity)
            for index, (table, slots) in enumerate(taken):
                num_rows = len(table.last_page_len)
                self.memory[index].upload_step(
                    parity, num_rows=num_rows, slots=slots, append_slot=step % NUM_APPEND_SLOTS
                )
                self._progress[index].begin(step, num_rows=num_rows, stores=len(slots) > 0)
            most = max(len(table.last_page_len) for table, _ in taken)
            if most:
                self._graphs.launch(parity, self._layout.graph_rows(most), [table for table, _ in taken])
            if not self._in_layer:
                for program, (_, slots) in zip(programs, taken, strict=False):
                    if len(slots):
                        program.file_step(len(slots))
            self._graphs.end(parity)

    def receive(self, notice: LaneData) -> None:
        """Set the flag of what has arrived.

        Raises:
            HandshakeError: there is no such lane or layer.
        """
        if notice.lane >= len(self._progress):
            raise HandshakeError(f"{notice.kind.name} for lane {notice.lane}")
        self._note_progress()
        self._progress[notice.lane].receive(notice)

    def drive(self) -> bool:
        """Post what is computed; False when there was nothing.

        Raises:
            PeerLostError: the weight node is gone, or did not send in time what a step waits for.
        """
        if self._deadline is None:
            return False
        num_posted = sum(lane.drive() for lane in self._progress)
        if num_posted:
            self._note_progress()
            return True
        if self.is_idle:
            self._deadline = None
        elif self._deadline.expired:
            waits_for = self.waits_for
            self.release()
            raise PeerLostError(self._peer, f"no {waits_for} within {WAIT_TIMEOUT_S:g} s")
        return False

    def release(self, step: int | None = None) -> None:
        """Let the graphs of a step, or of all, run to their end."""
        for lane in self._progress:
            lane.release(step)

    def close_views(self) -> None:
        """Give up whatever is under way."""
        self.release()
        self._graphs.stream.synchronize()
        self._plans = []
        self._deadline = None

    def _note_progress(self) -> None:
        if self._deadline is not None:
            self._deadline = Deadline(self._clock, WAIT_TIMEOUT_S)

    def _post(self, num_rows: int, notice: LaneData) -> None:
        if not self._plans:
            raise PeerLostError(self._peer, "its lanes are not connected")
        index = self._layout.bucket_index(num_rows)
        self._transport.post(self._plans[notice.lane], index, notice.encode())
