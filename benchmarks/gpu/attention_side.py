"""The attention node's process of a benchmark: the product's lanes and graphs, driven over a pipe."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from kernelflume.anode.gpu.decode import PagedDecode
from kernelflume.anode.gpu.device_kernels import allocate_workspace
from kernelflume.anode.gpu.device_pages import DevicePages
from kernelflume.anode.gpu.graph import LinkGraphs
from kernelflume.anode.gpu.lane import PARITIES, DeviceLane, LaneProgram
from kernelflume.anode.gpu.page_table import PageTable
from kernelflume.core.errors import UnavailableError
from kernelflume.core.regions import LanePath
from kernelflume.cuda.exchange import ExchangeKernels
from kernelflume.cuda.status import StatusWord
from kernelflume.tensor.capture import captured
from kernelflume.tensor.device import architecture
from kernelflume.transport.base import Write
from kernelflume.transport.lanes import LaneLayout
from kernelflume.transport.memory import register
from kernelflume.transport.nixl import NixlTransport

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from benchmarks.gpu.workload import Workload

    from kernelflume.core.regions import MemoryRegion

TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Offer:
    """What one side tells the other of its lanes."""

    name: str
    metadata: bytes
    lanes: tuple[tuple[MemoryRegion, ...], ...]
    """Regions of each lane, in the order of the views' elements."""


@dataclass(frozen=True, slots=True)
class Share:
    """What an attention node holds: tokens of each row, and which lane and rows append here."""

    tokens: tuple[tuple[int, ...], ...]
    """Tokens held of each row of each lane, before the first step."""
    appends: bool
    """This node has the tails."""
    in_layer: bool
    """Keys and values come layer by layer."""


def make_pages(
    workload: Workload, num_pages: int, device: torch.device, *, shares_layers: bool
) -> DevicePages:
    """Return pages; with ``shares_layers`` one layer's serve all, so that longer contexts fit.

    Attention reads them from memory all the same: they are far larger than the L2 cache.
    """
    geometry = workload.geometry
    held = workload.with_(num_layers=1).geometry if shares_layers else geometry
    pages = DevicePages(held, page_tokens=workload.page_tokens, num_pages=num_pages, device=device)
    if shares_layers:
        pages.geometry = geometry
        pages.pages = pages.pages.expand(geometry.num_layers, *pages.pages.shape[1:])
    return pages


def fill_pages(pages: DevicePages, seed: int) -> None:
    """Fill the pages with random keys and values, the same in every format up to rounding."""
    device = pages.pages.device
    generator = torch.Generator(device).manual_seed(seed)
    for layer in pages.pages if pages.pages.stride(0) else pages.pages[:1]:
        for part in layer.split(4096):
            part.copy_(torch.randn(part.shape, generator=generator, device=device, dtype=torch.bfloat16))


class AttentionSide:
    """One attention node."""

    def __init__(
        self, transport: NixlTransport, device: int, workload: Workload, share: Share, *, shares_layers: bool
    ) -> None:
        self.name = transport.name
        self.workload, self.share = workload, share
        self.device = torch.device("cuda", device)
        geometry = workload.geometry
        self.transport = transport
        self.registered: list[MemoryRegion] = []
        self.peer = ""
        self.kernels = ExchangeKernels(geometry, architecture=architecture(self.device), timeout_s=TIMEOUT_S)
        self.status = StatusWord(self.device)
        num_pages = sum(
            -(-(tokens + 4096) // workload.page_tokens) for rows in share.tokens for tokens in rows
        )
        self.pages = make_pages(workload, num_pages, self.device, shares_layers=shares_layers)
        self.layout = LaneLayout(geometry, max(workload.lane_rows))
        self.views: list[int] = []
        self.step = 0
        self.lanes, self.regions = self._make_lanes()
        self.small = np.zeros(64, np.uint8)
        self.small_region = self.transport.register(self.small)
        self.registered.append(self.small_region)
        self.tokens = [np.asarray(rows, np.int64) for rows in share.tokens]
        first = 0
        self.first_page: list[np.ndarray] = []
        for rows in self.tokens:
            pages = -(-(rows + 4096) // workload.page_tokens)
            self.first_page.append(first + np.concatenate(([0], np.cumsum(pages)[:-1])))
            first += int(pages.sum())

    def _make_lanes(self) -> tuple[list[DeviceLane], tuple[tuple[MemoryRegion, ...], ...]]:
        """Allocate lanes; return them and what the weight node writes to."""
        lanes = [DeviceLane.allocate(self.layout, self.device) for _ in self.workload.lane_rows]
        self.out_regions = [self._register(lane.out) for lane in lanes]
        self.lse_regions = [self._register(lane.staged_lse) for lane in lanes]
        return lanes, tuple(
            (self._register(lane.queries), self._register(lane.appends), self._register(lane.counters))
            for lane in lanes
        )

    def _register(self, tensor: torch.Tensor) -> MemoryRegion:
        self.registered.append(register(self.transport, tensor))
        return self.registered[-1]

    def close(self) -> None:
        """Forget the weight node and the memory."""
        for view in self.views:
            self.transport.release_view(view)
        self.transport.disconnect(self.peer)
        for region in self.registered:
            self.transport.deregister(region)

    def fill(self, seed: int) -> None:
        """Fill the pages with random keys and values."""
        fill_pages(self.pages, seed)

    def offer(self) -> Offer:
        """Describe the lanes."""
        return Offer(self.name, self.transport.metadata(), self.regions)

    def connect(self, peer: Offer) -> None:
        """Connect to the weight node and exchange a write."""
        self._meet(peer)
        self.views = [self.transport.remote_view(peer.name, regions) for regions in peer.lanes]
        self.programs = [
            LaneProgram(
                kernels=self.kernels,
                lane=lane,
                pages=self.pages,
                out_view=self.transport.local_view(out),
                lse_view=self.transport.local_view(lse),
                status=self.status.address,
                waits_in_layer=self.share.in_layer,
            )
            for lane, out, lse in zip(self.lanes, self.out_regions, self.lse_regions, strict=True)
        ]
        self.graphs = LinkGraphs([self.programs] * PARITIES, self.pages, max_rows=max(self.rows))
        for lane, view in zip(self.lanes, self.views, strict=True):
            lane.reset_state(view)
        self.graphs.warm(len(self.lanes), max(self.rows))

    def _meet(self, peer: Offer) -> None:
        self.peer = peer.name
        self.transport.connect(peer.name, peer.metadata)
        exchange_warm_write(self.transport, peer, self.small_region)

    def time_attention(self) -> list[float]:
        """Measure the attention of each lane alone: seconds a layer."""
        found = []
        stream = self.graphs.stream
        for index, (lane, rows) in enumerate(zip(self.lanes, self.rows, strict=True)):
            decode = PagedDecode(
                self.pages,
                num_rows=rows,
                workspace=allocate_workspace(self.device, self.workload.geometry, rows),
                max_pages=self.pages.num_pages,
            )
            with torch.inference_mode(), torch.cuda.stream(stream):
                decode.plan(self._table(index))
                stream.synchronize()
                graph = torch.cuda.CUDAGraph()
                with captured(graph, pool=None, stream=stream):
                    for layer in range(self.workload.num_layers):
                        decode.run(layer, lane.queries[:rows], lane.out[:rows], lane.lse[:rows])
                times = []
                for _ in range(10):
                    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    begin.record()
                    graph.replay()
                    end.record()
                    stream.synchronize()
                    times.append(begin.elapsed_time(end))
            found.append(sorted(times)[5] * 1e-3 / self.workload.num_layers)
        return found

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows of each lane."""
        return tuple(len(tokens) for tokens in self.tokens)

    def run(self, num_steps: int) -> float:
        """Launch ``num_steps`` steps; return the host time of one."""
        busy = 0.0
        for _ in range(num_steps):
            begun = time.perf_counter()
            self._launch()
            busy += time.perf_counter() - begun
        deadline = time.monotonic() + TIMEOUT_S
        while not self.graphs.stream.query():
            self.transport.poll()
            if time.monotonic() > deadline:
                raise UnavailableError("the steps did not end")
        if self.status.failure is not None:
            raise UnavailableError(f"a wait failed: {self.status.failure}")
        return busy / num_steps

    def _launch(self) -> None:
        """Enqueue one step, as ``DeviceLink.launch`` does."""
        parity = self.step % PARITIES
        appends, in_layer = self.share.appends, self.share.in_layer
        with torch.inference_mode(), torch.cuda.stream(self.graphs.stream):
            self.graphs.begin(parity)
            for index, lane in enumerate(self.lanes):
                slots = self._slots(index) if appends else np.empty(0, np.int64)
                lane.upload_step(parity, num_rows=self.rows[index], slots=slots, append_slot=parity)
                if in_layer:
                    self.tokens[index] = self.tokens[index] + appends
            self.graphs.launch(
                parity, max(self.rows), [self._table(index) for index in range(len(self.lanes))]
            )
            if appends and not in_layer:
                # What the step appends is filed behind its attention.
                for index, program in enumerate(self.programs):
                    program.file_step(self.rows[index])
                    self.tokens[index] = self.tokens[index] + 1
            self.graphs.end(parity)
        self.step += 1

    def _slots(self, index: int) -> np.ndarray:
        tokens = self.tokens[index]
        size = self.workload.page_tokens
        return np.asarray((self.first_page[index] + tokens // size) * size + tokens % size, np.int64)

    def _table(self, index: int) -> PageTable:
        tokens, size = self.tokens[index], self.workload.page_tokens
        pages = -(-tokens // size)
        indptr = np.concatenate(([0], np.cumsum(pages))).astype(np.int32)
        offsets = np.arange(indptr[-1], dtype=np.int32) - np.repeat(indptr[:-1], pages)
        indices = (np.repeat(self.first_page[index], pages) + offsets).astype(np.int32)
        return PageTable(indptr, indices, (tokens - (pages - 1) * size).astype(np.int32))


def exchange_warm_write(transport: NixlTransport, peer: Offer, local: MemoryRegion) -> None:
    """Post a small write into the peer's first region, and poll until the peer's came."""
    plan = transport.plan_writes(peer.name, [Write(local, 0, peer.lanes[0][0], 0, 64)])
    transport.post(plan, 0, b"warm")
    deadline = time.monotonic() + TIMEOUT_S
    seen = False
    while not (seen and transport.is_done(plan, 0)):
        seen = bool(transport.poll()) or seen
        if time.monotonic() > deadline:
            raise UnavailableError(f"no warm write of {peer.name}")


def attention_main(
    connection: Connection, name: str, device: int, kind: type[AttentionSide] = AttentionSide
) -> None:
    """Run an attention node of a ``kind`` until told to stop.

    Orders: ("open", path, workload, share, shares_layers, seed), ("connect", offer), ("run", n), ("time",),
    ("call", method, *arguments), ("stop",).
    """
    from benchmarks.gpu.host_attention_side import HostAttentionSide  # it builds on this module

    torch.cuda.set_device(device)
    torch.zeros(1, device="cuda")
    transport = NixlTransport(name, error_handling="peer", memory="VRAM")
    side: AttentionSide | None = None
    try:
        while True:
            while not connection.poll(0.0005):
                transport.poll()
            order, *values = connection.recv()
            if order == "stop":
                return
            if order == "open":
                if side is not None:
                    side.close()
                side = None
                torch.cuda.empty_cache()
                path, workload, share, shares_layers, seed = values
                make = HostAttentionSide if path == LanePath.HOST else kind
                side = make(transport, device, workload, share, shares_layers=shares_layers)
                side.fill(seed)
                connection.send(side.offer())
            elif order == "connect" and side is not None:
                side.connect(values[0])
                connection.send("connected")
            elif order == "time" and side is not None:
                connection.send(("timed", side.time_attention()))
            elif order == "run" and side is not None:
                connection.send(("ran", side.run(values[0])))
            elif order == "call" and side is not None:
                connection.send(("called", getattr(side, values[0])(*values[1:])))
    except Exception as error:  # noqa: BLE001 - told to the process that waits for an answer
        import traceback

        connection.send(("failed", f"{name}: {error}\n{traceback.format_exc()}"))
