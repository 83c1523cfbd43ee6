"""The weight node of a benchmark on the host path: the product's exchange, driven step by step."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from benchmarks.gpu.attention_side import TIMEOUT_S, Offer
from benchmarks.gpu.weight_side import AttentionProcess, WeightSide

from kernelflume.core.errors import UnavailableError
from kernelflume.core.regions import DeviceLanes, LanePath
from kernelflume.runtime.clock import MonotonicClock
from kernelflume.transport.lanes import LaneLayout
from kernelflume.transport.wire import LaneData, decode
from kernelflume.wnode.gpu.graph import StepGraphs
from kernelflume.wnode.gpu.host_exchange import HostExchange
from kernelflume.wnode.gpu.lane import LaneBuffers
from kernelflume.wnode.gpu.lane_routes import LaneRoutes, NodeRows
from kernelflume.wnode.gpu.program import StepProgram

if TYPE_CHECKING:
    from benchmarks.gpu.workload import Workload

    from kernelflume.core.regions import MemoryRegion
    from kernelflume.transport.nixl import NixlTransport
    from kernelflume.wnode.gpu.device_stage import QueryFirst
    from kernelflume.wnode.gpu.host_end import HostEnd
    from kernelflume.wnode.link import Link
    from kernelflume.wnode.model.decoder import Decoder


@dataclass(frozen=True, slots=True)
class _Link:
    """What an exchange needs of a link; steps are announced over the pipe."""

    node_name: str
    device: HostEnd

    def has_launched(self, step: int) -> bool:
        """A step's answers say that it was."""
        return step >= 0


class HostWeightSide(WeightSide):
    """The weight node, linked to attention processes, with the product's ``HostExchange``."""

    path = LanePath.HOST

    def __init__(
        self,
        workload: Workload,
        decoder: Decoder,
        processes: list[AttentionProcess],
        *,
        mode: QueryFirst,
        transport: NixlTransport,
    ) -> None:
        # All that the device path has of its own is left out, so the other constructor is not run.
        self.workload, self.decoder, self.processes, self.mode = workload, decoder, processes, mode
        self.transport = transport
        self.views = []
        self.registered = []
        self.layout = LaneLayout(workload.geometry, max(workload.lane_rows))
        self.lanes = [
            LaneBuffers.allocate(workload.geometry, self.layout.max_rows, decoder.device)
            for _ in workload.lane_rows
        ]
        self.exchange = HostExchange(
            self.lanes,
            self.layout,
            query_first=mode,
            transport=transport,
            clock=MonotonicClock(),
            timeout_s=TIMEOUT_S,
        )
        self.links = {process.name: _Link(process.name, self.exchange.make_end()) for process in processes}
        self.small = np.zeros(64, np.uint8)
        self.small_region: MemoryRegion = transport.register(self.small)
        self.registered.append(self.small_region)
        self.graphs = StepGraphs(StepProgram(decoder, self.lanes, self.exchange.stages))
        self.routes: list[LaneRoutes] = []
        self.step = 1

    def link(self, *, shares_layers: bool, seed: int = 7) -> None:
        """Open every attention node, connect, fill the routes and capture."""
        offers: list[Offer] = self._open_processes(
            self._equal_shares(), shares_layers=shares_layers, seed=seed
        )
        for process, offer in zip(self.processes, offers, strict=True):
            end = self.links[process.name].device
            self._meet(process, offer, end.lanes.lanes)
            answer = DeviceLanes(self.layout.max_rows, self.mode, offer.lanes, LanePath.HOST)
            end.connect(offer.name, answer)
            end.open(offer.name, answer)
        ends = {name: link.device for name, link in self.links.items()}
        tail = self.processes[-1].name
        for index, (stage, num_rows) in enumerate(
            zip(self.exchange.stages, self.workload.lane_rows, strict=True)
        ):
            rows = list(range(num_rows))
            nodes = {
                name: NodeRows(query_rows=rows, kv_rows=rows if name == tail else []) for name in self.links
            }
            self.routes.append(LaneRoutes(num_rows, nodes))
            stage.upload(self.routes[-1].tables(index, ends, self.layout.max_rows))
        torch.cuda.synchronize()

    def run(self, num_steps: int, *, keep_logits: bool = False) -> tuple[list[float], list[torch.Tensor]]:
        """Run steps; return each one's time in seconds, and its logits [batch, vocab] if wanted."""
        for process in self.processes:
            process.tell("run", num_steps)
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2 * num_steps)]
        for mark in marks:
            mark.record()  # an event is made at its first use
        torch.cuda.synchronize()
        logits: list[torch.Tensor] = []
        try:
            with torch.cuda.stream(self.exchange.stream):
                for index in range(num_steps):
                    lanes = self._run_step(marks[2 * index], marks[2 * index + 1])
                    if keep_logits:
                        logits.append(torch.cat([lane.clone() for lane in lanes]))
        except Exception as error:
            self.exchange.abort()  # or nothing could be waited for, not even the end of the process
            torch.cuda.synchronize()
            theirs = [failure for process in self.processes if (failure := process.failure(TIMEOUT_S))]
            raise UnavailableError("; ".join([f"weight side: {error}", *theirs])) from error
        answers = [process.answer(self.transport) for process in self.processes]
        torch.cuda.synchronize()
        self.attention_host_s = max((answer[1] for answer in answers), default=0.0)
        return [
            marks[2 * index].elapsed_time(marks[2 * index + 1]) * 1e-3 for index in range(num_steps)
        ], logits

    def close(self) -> None:
        """Forget the attention nodes and the memory."""
        for link in self.links.values():
            link.device.close_views()
        super().close()
        for link in self.links.values():
            link.device.release()

    def _run_step(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> list[torch.Tensor]:
        rows = self.workload.lane_rows
        self.exchange.begin(self.step, self.routes, cast("dict[str, Link]", self.links))
        self.step += 1
        begin.record()
        logits = self.graphs.replay(rows)
        end.record()
        deadline = time.monotonic() + TIMEOUT_S
        while not (self.exchange.turn() and end.query()):
            for notice in self.transport.poll():
                self.links[notice.peer].device.receive(cast("LaneData", decode(notice.payload)))
            if time.monotonic() > deadline:
                raise UnavailableError(f"weight side: step {self.step - 1} did not end in {TIMEOUT_S:g} s")
        return logits


def side_of(path: str) -> type[WeightSide]:
    """Return the weight node of a path."""
    return HostWeightSide if path == LanePath.HOST else WeightSide
