"""The attention node of a benchmark on the host path: its graphs, and the loop that posts between them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

import numpy as np
from benchmarks.gpu.attention_side import TIMEOUT_S, AttentionSide, Offer

from kernelflume.anode.gpu.host_lanes import HostLanes
from kernelflume.anode.gpu.work import LaneWork
from kernelflume.core.errors import UnavailableError
from kernelflume.runtime.clock import MonotonicClock
from kernelflume.transport.wire import LaneData, decode, is_lane_data

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.anode.gpu.lane import DeviceLane
    from kernelflume.core.regions import MemoryRegion


class HostAttentionSide(AttentionSide):
    """One attention node, with the product's ``HostLanes``."""

    def _make_lanes(self) -> tuple[list[DeviceLane], tuple[tuple[MemoryRegion, ...], ...]]:
        self.host = HostLanes(
            self.layout,
            self.pages,
            self.transport,
            num_lanes=len(self.workload.lane_rows),
            in_layer=self.share.in_layer,
            clock=MonotonicClock(),
        )
        self.step = 1
        self.registered += [region for lane in self.host.regions for region in lane]
        self.registered += self.host.sources
        return self.host.memory, tuple(self.host.regions)

    def connect(self, peer: Offer) -> None:
        """Connect to the weight node, exchange a write and capture."""
        self._meet(peer)
        self.host.connect(peer.name, peer.lanes)
        self.host.warm(len(self.lanes), max(self.rows))

    def time_attention(self) -> list[float]:
        """Refuse: it is the same kernel as on the device path."""
        raise UnavailableError("attention alone is measured on the device path")

    def run(self, num_steps: int) -> float:
        """Run ``num_steps`` steps; return the host time of launching one."""
        busy = 0.0
        for _ in range(num_steps):
            # Planned once the last partial is on its way, beside what the weight node has left to do.
            self._drive_until(lambda: self.host.is_answered and self.host.can_launch(self.step), "its launch")
            begun = time.perf_counter()
            self._launch()
            busy += time.perf_counter() - begun
        self._drive_until(lambda: self.host.is_answered and self.host.is_idle, "its end")
        return busy / num_steps

    def close(self) -> None:
        """Give up what is under way, and forget the weight node and the memory."""
        self.host.close_views()
        super().close()

    def _launch(self) -> None:
        work = []
        for index in range(len(self.lanes)):
            slots = self._slots(index) if self.share.appends else np.empty(0, np.int64)
            if self.share.in_layer:
                self.tokens[index] = self.tokens[index] + self.share.appends
            work.append(LaneWork(self._table(index), slots))
            if not self.share.in_layer:
                self.tokens[index] = self.tokens[index] + self.share.appends
        self.host.launch(work, self.step)
        self.step += 1

    def _drive_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            for notice in self.transport.poll():
                if is_lane_data(notice.payload):
                    self.host.receive(cast("LaneData", decode(notice.payload)))
            if not self.host.drive() and time.monotonic() > deadline:
                waits_for = self.host.waits_for
                self.host.release()
                raise UnavailableError(
                    f"attention side: step {self.step} did not reach {what}; it waits for {waits_for}"
                )
