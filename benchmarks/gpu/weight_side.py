"""The weight node of a benchmark: the product's step program, with attention elsewhere or beside it."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from benchmarks.gpu.attention_side import (
    TIMEOUT_S,
    AttentionSide,
    Offer,
    Share,
    attention_main,
    exchange_warm_write,
)

from kernelflume.core.errors import UnavailableError
from kernelflume.core.regions import LanePath
from kernelflume.cuda.exchange import COUNTERS_BYTES, NODE_ROUTE, ExchangeKernels, RowTables
from kernelflume.cuda.status import StatusWord
from kernelflume.tensor.device import architecture
from kernelflume.transport.lanes import LaneLayout
from kernelflume.transport.memory import register
from kernelflume.wnode.gpu.device_stage import DeviceStage, QueryFirst
from kernelflume.wnode.gpu.graph import StepGraphs
from kernelflume.wnode.gpu.lane import LaneBuffers
from kernelflume.wnode.gpu.program import StepProgram
from kernelflume.wnode.model.decoder import Decoder, random_decoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.gpu.workload import Workload

    from kernelflume.core.regions import MemoryRegion
    from kernelflume.transport.nixl import NixlTransport


def make_decoder(workload: Workload) -> Decoder:
    """Return the model on the present GPU."""
    return random_decoder(
        workload.model,
        dtype=getattr(torch, workload.dtype),
        device=torch.device("cuda", torch.cuda.current_device()),
        seed=1,
        pack_weights=False,
    )


class AttentionProcess:
    """A child process with an attention node in it."""

    def __init__(self, index: int, device: int, kind: type[AttentionSide] = AttentionSide) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = f"a{index}#1"
        self._connection, theirs = context.Pipe()
        arguments = (theirs, self.name, device, kind)
        self._process = context.Process(target=attention_main, args=arguments, daemon=True)
        self._process.start()

    def tell(self, *order: Any) -> None:
        """Send an order."""
        self._connection.send(order)

    def answer(self, transport: NixlTransport | None = None) -> Any:
        """Wait for the answer, making progress meanwhile."""
        deadline = time.monotonic() + 240
        while not self._connection.poll(0.0005):
            if transport is not None:
                transport.poll()
            if time.monotonic() > deadline or not self._process.is_alive():
                raise UnavailableError(f"{self.name} does not answer")
        answer = self._connection.recv()
        if isinstance(answer, tuple) and answer[0] == "failed":
            raise UnavailableError(answer[1])
        return answer

    def failure(self, timeout_s: float) -> str:
        """Return what the process says that went wrong, '' where it says nothing in time."""
        if not self._connection.poll(timeout_s):
            return ""
        answer = self._connection.recv()
        return str(answer[1]) if isinstance(answer, tuple) and answer[0] == "failed" else ""

    def stop(self) -> None:
        """End the process."""
        with contextlib.suppress(OSError):
            self.tell("stop")
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()


class WeightSide:
    """The weight node, linked to attention processes."""

    path = LanePath.DEVICE

    def __init__(
        self,
        workload: Workload,
        decoder: Decoder,
        processes: list[AttentionProcess],
        *,
        mode: QueryFirst,
        transport: NixlTransport,
    ) -> None:
        self.workload, self.decoder, self.processes, self.mode = workload, decoder, processes, mode
        device = decoder.device
        geometry = workload.geometry
        self.transport = transport
        self.registered: list[MemoryRegion] = []
        self.views: list[int] = []
        self.kernels = ExchangeKernels(geometry, architecture=architecture(device), timeout_s=TIMEOUT_S)
        self.status = StatusWord(device)
        self.layout = LaneLayout(geometry, max(workload.lane_rows))
        self.lanes = [
            LaneBuffers.allocate(geometry, self.layout.max_rows, device) for _ in workload.lane_rows
        ]
        self.stages: list[DeviceStage] = []
        for lane in self.lanes:
            views = (
                self.transport.local_view(self._register(lane.query)),
                self.transport.local_view(self._register(lane.keys_values)),
            )
            self.stages.append(
                DeviceStage.create(
                    self.kernels, lane, self.layout, mode=mode, views=views, status=self.status.address
                )
            )
        # [nodes][lanes] of (partials, counters)
        self.arrivals = [
            [
                (
                    torch.zeros(self.layout.partial_region_bytes, dtype=torch.uint8, device=device),
                    torch.zeros(COUNTERS_BYTES, dtype=torch.uint8, device=device),
                )
                for _ in self.lanes
            ]
            for _ in processes
        ]
        self.small = np.zeros(64, np.uint8)
        self.small_region = self.transport.register(self.small)
        self.registered.append(self.small_region)
        self.arrival_regions = [
            tuple((self._register(partials), self._register(counters)) for partials, counters in lanes)
            for lanes in self.arrivals
        ]
        self.graphs = StepGraphs(StepProgram(decoder, self.lanes, self.stages))

    def _register(self, tensor: torch.Tensor) -> MemoryRegion:
        self.registered.append(register(self.transport, tensor))
        return self.registered[-1]

    def link(self, *, shares_layers: bool, seed: int = 7) -> None:
        """Open every attention node with an equal share, connect, fill the routes and capture."""
        self.open(self._equal_shares(), shares_layers=shares_layers, seed=seed)
        for index, stage in enumerate(self.stages):
            self._upload(stage, index, [lanes[index] for lanes in self.node_views])
        torch.cuda.synchronize()

    def _equal_shares(self) -> list[Share]:
        count = len(self.processes)
        held = self.workload.context // count
        return [
            Share(
                tuple((held,) * lane_rows for lane_rows in self.workload.lane_rows),
                appends=index == count - 1,
                in_layer=self.mode is not QueryFirst.LOCAL,
            )
            for index in range(count)
        ]

    def open(self, shares: Sequence[Share], *, shares_layers: bool, seed: int = 7) -> None:
        """Capture, open every attention node with its share, and connect."""
        offers = self._open_processes(shares, shares_layers=shares_layers, seed=seed)
        self.node_views: list[list[int]] = []
        for process, offer, regions in zip(self.processes, offers, self.arrival_regions, strict=True):
            self._meet(process, offer, regions)
            self.node_views.append([self.transport.remote_view(offer.name, lane) for lane in offer.lanes])
            self.views += self.node_views[-1]

    def _open_processes(self, shares: Sequence[Share], *, shares_layers: bool, seed: int) -> list[Offer]:
        torch.cuda.synchronize()
        self.graphs.warm(self.workload.lane_rows)
        for index, (process, share) in enumerate(zip(self.processes, shares, strict=True)):
            process.tell("open", self.path, self.workload, share, shares_layers, seed + index)
        return [process.answer() for process in self.processes]

    def _meet(
        self, process: AttentionProcess, offer: Offer, regions: tuple[tuple[MemoryRegion, ...], ...]
    ) -> None:
        process.tell("connect", Offer("w0#1", self.transport.metadata(), regions))
        self.transport.connect(offer.name, offer.metadata)
        exchange_warm_write(self.transport, offer, self.small_region)
        process.answer(self.transport)

    def _upload(self, stage: DeviceStage, lane: int, views: list[int]) -> None:
        num_rows = self.workload.lane_rows[lane]
        memory, header, tables = RowTables(self.layout.max_rows).empty()
        header["num_nodes"] = len(views)
        header["num_rows"] = num_rows
        for node, view in enumerate(views):
            partials, counters = self.arrivals[node][lane]
            route = np.zeros(1, NODE_ROUTE)
            route["remote"] = view
            route["partial_out"] = partials.data_ptr()
            route["partial_lse"] = partials.data_ptr() + self.layout.lse_offset(self.layout.max_rows)
            route["partial_counter"] = counters.data_ptr()
            route["num_query_rows"] = num_rows
            route["num_kv_rows"] = num_rows if node == len(views) - 1 else 0
            header["nodes"][0, node] = route[0]
            tables[0, node, :num_rows] = np.arange(num_rows)
            tables[1, node, :num_rows] = np.arange(num_rows)
            tables[2, node, :num_rows] = np.arange(num_rows)
        stage.upload(memory)

    def time_alone(self, num_steps: int = 12) -> float:
        """Measure the weight node without any attention node, before ``link``: seconds a layer, all lanes.

        Rows must differ as they do in earnest: products of equal rows switch fewer bits, and a GPU that is at
        its power limit computes them up to a fifth faster.
        """
        self.graphs.warm(self.workload.lane_rows)
        times = []
        for _ in range(num_steps):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            self.graphs.replay(self.workload.lane_rows)
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        return float(sorted(times)[num_steps // 2]) * 1e-3 / self.workload.num_layers

    def time_attention(self) -> list[float]:
        """Have the nodes measure their attention alone: the slowest's seconds a layer, for each lane."""
        for process in self.processes:
            process.tell("time")
        answers = [process.answer(self.transport)[1] for process in self.processes]
        return [max(lanes) for lanes in zip(*answers, strict=True)]

    def set_inputs(self, token_ids: torch.Tensor) -> None:
        """Set each row's input token and position."""
        first = 0
        for lane, rows in zip(self.lanes, self.workload.lane_rows, strict=True):
            lane.token_ids[:rows] = token_ids[first : first + rows]
            lane.positions[:rows] = self.workload.context
            first += rows

    def run(self, num_steps: int, *, keep_logits: bool = False) -> tuple[list[float], list[torch.Tensor]]:
        """Run steps; return each one's time in seconds, and its logits [batch, vocab] if wanted."""
        for process in self.processes:
            process.tell("run", num_steps)
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(num_steps + 1)]
        logits: list[torch.Tensor] = []
        marks[0].record()
        for mark in marks[1:]:
            lanes = self.graphs.replay(self.workload.lane_rows)
            mark.record()
            if keep_logits:
                logits.append(torch.cat([lane.clone() for lane in lanes]))
        answers = [process.answer(self.transport) for process in self.processes]
        torch.cuda.synchronize()
        self.attention_host_s = max((answer[1] for answer in answers), default=0.0)
        if self.status.failure is not None:
            raise UnavailableError(f"a wait failed: {self.status.failure}")
        return [a.elapsed_time(b) * 1e-3 for a, b in itertools.pairwise(marks)], logits

    def close(self) -> None:
        """Forget the attention nodes and the memory."""
        for view in self.views:
            self.transport.release_view(view)
        for process in self.processes:
            self.transport.disconnect(process.name)
        for region in self.registered:
            self.transport.deregister(region)
