"""Both sides of a lane of the host path without a GPU: the test plays the graphs that set and await flags."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from kernelflume.anode.gpu.host_lane import HostLane
from kernelflume.core.regions import DeviceLanes, LanePath
from kernelflume.cuda.flags import FlagKind, StepFlags
from kernelflume.runtime.clock import Deadline, MonotonicClock
from kernelflume.transport.base import Write
from kernelflume.transport.lanes import NUM_APPEND_SLOTS, LaneLayout
from kernelflume.transport.memory import allocate
from kernelflume.transport.wire import LaneData, decode
from kernelflume.wnode.gpu.host_end import HostEnd
from kernelflume.wnode.gpu.host_exchange import HostPeer, LaneDrives
from tests.anode import GEOMETRY

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernelflume.core.geometry import KvGeometry
    from kernelflume.transport.base import Transport

LAYERS = GEOMETRY.num_layers
LAYOUT = LaneLayout(GEOMETRY, 8)
_DEADLINE_S = 60.0


class HostPair:
    """A weight node's end and an attention node's lane, over two transports of this process."""

    def __init__(self, w: Transport, a: Transport, *, query_first: str = "local") -> None:
        self.w, self.a = w, a
        self.in_layer = query_first != "local"
        self.queries = allocate(LAYOUT.query_region_bytes)
        self.appends = allocate(LAYOUT.append_region_bytes)
        self.partial = allocate(LAYOUT.graph_partial_bytes(LAYOUT.max_rows))
        self.end = HostEnd(
            LAYOUT, num_lanes=1, query_first=query_first, transport=w, device=torch.device("cpu")
        )
        source = a.register(self.partial)
        answer = DeviceLanes(
            LAYOUT.max_rows,
            query_first,
            ((a.register(self.queries), a.register(self.appends)),),
            LanePath.HOST,
        )
        w.connect(a.name, a.metadata())
        a.connect(w.name, w.metadata())
        [[target]] = self.end.lanes.lanes
        plan = a.plan_writes(
            w.name, [Write(source, 0, target, 0, LAYOUT.graph_partial_bytes(rows)) for rows in LAYOUT.buckets]
        )
        self.flags = [StepFlags(LAYERS, pinned=False) for _ in range(2)]
        self.lane = HostLane(
            0,
            self.flags,
            num_layers=LAYERS,
            in_layer=self.in_layer,
            post=lambda rows, notice: a.post(plan, LAYOUT.bucket_index(rows), notice.encode()),
        )
        self.end.connect(a.name, answer)
        self.end.open(a.name, answer)
        self.w_flags = StepFlags(LAYERS, pinned=False)
        self.drives = LaneDrives([self.w_flags], MonotonicClock(), timeout_s=_DEADLINE_S)
        self.has_posted_all = False

    def begin(self, step: int, num_rows: int) -> None:
        """Begin a step of rows that ask and are stored, on both sides."""
        self.until(self.end.is_settled)
        peer = HostPeer(self.a.name, self.end, 0, step, num_rows, num_rows, lambda _: True)
        self.drives.begin({0: [peer]}, num_layers=LAYERS, in_layer=self.in_layer)
        self.lane.begin(step, num_rows=num_rows, stores=True)
        self.has_posted_all = False

    def until(self, condition: Callable[[], bool]) -> None:
        """Drive both sides until something holds."""
        deadline = Deadline(MonotonicClock(), _DEADLINE_S)
        while not condition():
            assert not deadline.expired
            self.turn()

    def turn(self) -> None:
        """Drive both sides once."""
        self.has_posted_all = self.drives.turn()
        for notice in self.a.poll():
            self.lane.receive(cast("LaneData", decode(notice.payload)))
        self.lane.drive()
        for notice in self.w.poll():
            self.end.receive(cast("LaneData", decode(notice.payload)))

    def staged(self, field: str, num_bytes: int, rows: int) -> np.ndarray:
        """The weight node's staging of a step of so many rows, where its kernels find it."""
        [route] = self.end.route(0, num_query_rows=rows, num_kv_rows=rows)
        return np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(int(route[field])))

    def slot(self, step: int, num_bytes: int) -> np.ndarray:
        """Where a step's keys and values arrive."""
        start = step % NUM_APPEND_SLOTS * LAYOUT.append_slot_bytes
        return self.appends[start : start + num_bytes]

    def play(self, step: int, rows: int) -> None:
        """Be both graphs for one step, and check what each finds when its flag is set."""
        geometry: KvGeometry = GEOMETRY
        bucket = LAYOUT.buckets[LAYOUT.bucket_index(rows)]
        kv_bytes = bucket * (geometry.kv_row_bytes if self.in_layer else geometry.token_bytes)
        flags, query_bytes = self.flags[step % 2], LAYOUT.query_bytes(rows)
        self.begin(step, rows)
        for layer in range(LAYERS):
            mark = (10 * step + layer) % 100
            # The weight node's graph gathers rows and says so ...
            self.staged("staged_queries", query_bytes, rows)[:] = mark
            self.w_flags.set(FlagKind.QUERY, layer)
            if self.in_layer:
                self.staged("staged_keys_values", kv_bytes, rows)[:] = mark
                self.w_flags.set(FlagKind.KEYS_VALUES, layer)
                self.until(partial(flags.is_set, FlagKind.KEYS_VALUES, layer))
                assert (self.slot(step, kv_bytes) == mark).all()
            # ... the attention node's finds them and answers ...
            self.until(partial(flags.is_set, FlagKind.QUERY, layer))
            assert (self.queries[:query_bytes] == mark).all()
            assert not self.w_flags.is_set(FlagKind.ATTENTION, layer)
            self.partial[: LAYOUT.graph_partial_bytes(rows)] = mark + 100
            flags.set(FlagKind.ATTENTION, layer)
            # ... and the weight node's may merge.
            self.until(partial(self.w_flags.is_set, FlagKind.ATTENTION, layer))
            arrived = self.staged("partial_lse", LAYOUT.graph_partial_bytes(rows), rows)
            assert (arrived == mark + 100).all()
            assert self.end.is_quiet
        if not self.in_layer:
            assert not flags.is_set(FlagKind.KEYS_VALUES, 0)
            self.staged("staged_keys_values", kv_bytes, rows)[:] = step
            self.w_flags.set(FlagKind.KEYS_VALUES, 0)
            self.until(lambda: flags.is_set(FlagKind.KEYS_VALUES, 0))
            assert (self.slot(step, kv_bytes) == step).all()
        self.until(lambda: self.has_posted_all)
        assert self.lane.is_answered
