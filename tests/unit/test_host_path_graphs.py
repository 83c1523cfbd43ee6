"""Whole steps of the host path: threads are the graphs, and one loop drives both sides."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
import torch
from tests.anode import GEOMETRY

from kernelflume.anode.gpu.host_lane import HostLane
from kernelflume.core.errors import PeerLostError
from kernelflume.core.regions import DeviceLanes, LanePath
from kernelflume.cuda.flags import FlagKind, StepFlags
from kernelflume.runtime.clock import Deadline, ManualClock, MonotonicClock
from kernelflume.transport.base import Write
from kernelflume.transport.lanes import LaneLayout
from kernelflume.transport.loopback import LoopbackNetwork, LoopbackTransport
from kernelflume.transport.wire import LaneData, decode
from kernelflume.wnode.gpu.host_end import HostEnd
from kernelflume.wnode.gpu.host_exchange import HostPeer, LaneDrives

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kernelflume.transport.base import WritePlan
    from kernelflume.wnode.gpu.host_drive import LanePeer

LAYERS = GEOMETRY.num_layers
LAYOUT = LaneLayout(GEOMETRY, 8)
ROWS = 3
DEADLINE_S = 20.0

Operation = tuple[str, StepFlags, FlagKind, int]
"""("set" or "wait", flags, kind, layer)"""


class Graph(threading.Thread):
    """Does operations in order, as a stream does."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        super().__init__(daemon=True)
        self._operations = operations

    def run(self) -> None:
        for what, flags, kind, layer in self._operations:
            if what == "set":
                flags.set(kind, layer)
            while what == "wait" and not flags.is_set(kind, layer):
                time.sleep(0)


def weight_graph(lanes: Sequence[StepFlags], *, in_layer: bool) -> Iterator[Operation]:
    """The order of ``StepProgram``."""
    for layer in range(LAYERS + 1):
        for flags in lanes:
            if layer:
                yield "wait", flags, FlagKind.ATTENTION, layer - 1
            if layer < LAYERS:
                yield "set", flags, FlagKind.QUERY, layer
                if in_layer:
                    yield "set", flags, FlagKind.KEYS_VALUES, layer
            elif not in_layer:
                yield "set", flags, FlagKind.KEYS_VALUES, 0


def attention_graph(lanes: Sequence[StepFlags], *, in_layer: bool) -> Iterator[Operation]:
    """The order of ``LinkGraphs``, and what is filed behind a graph."""
    for layer in range(LAYERS):
        for flags in lanes:
            yield "wait", flags, FlagKind.QUERY, layer
            if in_layer:
                yield "wait", flags, FlagKind.KEYS_VALUES, layer
            yield "set", flags, FlagKind.ATTENTION, layer
    if not in_layer:
        for flags in lanes:
            yield "wait", flags, FlagKind.KEYS_VALUES, 0


class Node:
    """An attention node with lanes, and the weight node's end of them."""

    def __init__(
        self, name: str, network: LoopbackNetwork, w: LoopbackTransport, num_lanes: int, mode: str
    ) -> None:
        self.name = name
        self.in_layer = mode != "local"
        self.transport = LoopbackTransport(name, network)
        self.transport.connect(w.name, w.metadata())
        w.connect(name, name.encode())
        self.end = HostEnd(
            LAYOUT, num_lanes=num_lanes, query_first=mode, transport=w, device=torch.device("cpu")
        )
        self.memory = [
            [np.zeros(size, np.uint8) for size in (LAYOUT.query_region_bytes, LAYOUT.append_region_bytes)]
            for _ in range(num_lanes)
        ]
        regions = tuple(tuple(map(self.transport.register, memory)) for memory in self.memory)
        answer = DeviceLanes(LAYOUT.max_rows, mode, regions, LanePath.HOST)
        self.partial = np.zeros(LAYOUT.graph_partial_bytes(LAYOUT.max_rows), np.uint8)
        source = self.transport.register(self.partial)
        self.plans: list[WritePlan] = [
            self.transport.plan_writes(
                w.name, [Write(source, 0, target, 0, LAYOUT.graph_partial_bytes(ROWS))]
            )
            for (target,) in self.end.lanes.lanes
        ]
        self.flags = [[StepFlags(LAYERS, pinned=False) for _ in range(2)] for _ in range(num_lanes)]
        self.lanes = [
            HostLane(index, flags, num_layers=LAYERS, in_layer=self.in_layer, post=self._post)
            for index, flags in enumerate(self.flags)
        ]
        self.graphs: list[Graph] = []
        self.step = 0
        self.answered: set[tuple[int, int]] = set()
        """(step, lane) of partials posted since the last launch."""
        self.end.connect(name, answer)
        self.end.open(name, answer)

    def _post(self, num_rows: int, notice: LaneData) -> None:
        assert num_rows == ROWS
        self.answered.add((notice.step, notice.lane))
        self.transport.post(self.plans[notice.lane], 0, notice.encode())

    def launch(self, step: int) -> None:
        """Begin a step in every lane, once the last one of its parity is done."""
        self.step, self.answered = step, set()
        for lane in self.lanes:
            lane.begin(step, num_rows=ROWS, stores=True)
        flags = [lane_flags[step % 2] for lane_flags in self.flags]
        self.graphs.append(Graph(list(attention_graph(flags, in_layer=self.in_layer))))
        self.graphs[-1].start()

    @property
    def has_answered(self) -> bool:
        """True once a partial of every lane's latest step was posted."""
        return self.answered == {(self.step, lane) for lane in range(len(self.lanes))}

    def turn(self) -> None:
        """What the node's loop does."""
        for notice in self.transport.poll():
            data = cast("LaneData", decode(notice.payload))
            self.lanes[data.lane].receive(data)
        for lane in self.lanes:
            lane.drive()


class Stack:
    """A weight node and attention nodes."""

    def __init__(self, num_nodes: int, num_lanes: int, mode: str) -> None:
        self.clock = ManualClock()
        self.network = LoopbackNetwork()
        self.w = LoopbackTransport("w#1", self.network)
        self.in_layer = mode != "local"
        self.nodes = [
            Node(f"a{index}#1", self.network, self.w, num_lanes, mode) for index in range(num_nodes)
        ]
        self.flags = [StepFlags(LAYERS, pinned=False) for _ in range(num_lanes)]
        self.drives = LaneDrives(self.flags, self.clock, timeout_s=DEADLINE_S)

    def step(self, number: int, silent: frozenset[str] = frozenset()) -> Graph:
        """Run a step, but for nodes that are silent; return the weight node's graph."""
        lanes = range(len(self.flags))
        peers = {
            lane: [
                cast("LanePeer", HostPeer(node.name, node.end, lane, number, ROWS, ROWS, lambda _: True))
                for node in self.nodes
            ]
            for lane in lanes
        }
        self.drives.begin(peers, num_layers=LAYERS, in_layer=self.in_layer)
        graph = Graph(list(weight_graph(self.flags, in_layer=self.in_layer)))
        graph.start()
        for node in self.nodes:
            if node.name not in silent:
                node.launch(number)
        deadline = Deadline(MonotonicClock(), DEADLINE_S)
        try:
            while not self.drives.turn() or graph.is_alive():
                assert not deadline.expired, "the step hangs"
                self.turn(silent)
        except PeerLostError:
            self.drives.abort()
            graph.join(DEADLINE_S)
            raise
        return graph

    def turn(self, silent: frozenset[str] = frozenset()) -> None:
        """Drive every node that is not silent; time flies once a step waits for those that are alone."""
        speaking = [node for node in self.nodes if node.name not in silent]
        if silent and all(node.end.is_quiet and node.has_answered for node in speaking):
            self.clock.advance(1)
        for node in self.nodes:
            if node.name not in silent:
                node.turn()
        for notice in self.w.poll():
            [node] = [node for node in self.nodes if node.name == notice.peer]
            node.end.receive(cast("LaneData", decode(notice.payload)))

    def finish(self) -> None:
        """Drive until every attention node's graphs have ended."""
        deadline = Deadline(MonotonicClock(), DEADLINE_S)
        while any(graph.is_alive() for node in self.nodes for graph in node.graphs):
            assert not deadline.expired, "an attention node hangs"
            self.turn()


@pytest.mark.parametrize("mode", ["local", "paper"])
@pytest.mark.parametrize("num_lanes", [1, 2])
@pytest.mark.parametrize("num_nodes", [1, 2])
def test_steps_of_any_number_of_lanes_and_nodes_end(num_nodes: int, num_lanes: int, mode: str) -> None:
    stack = Stack(num_nodes, num_lanes, mode)
    for number in range(1, 5):
        assert not stack.step(number).is_alive()
    stack.finish()
    assert all(lane.is_answered for node in stack.nodes for lane in node.lanes)


def test_a_silent_node_is_named_the_graph_ends_and_the_other_node_goes_on() -> None:
    stack = Stack(2, 2, "local")
    stack.step(1)
    with pytest.raises(PeerLostError, match="a1#1 is lost: no partial of layer 0 within 20 s"):
        stack.step(2, silent=frozenset({"a1#1"}))
    # What RETRACT does at the node that is there:
    for lane in stack.nodes[0].lanes:
        lane.release(2)
    stack.nodes.pop()
    stack.finish()
    assert not stack.step(3).is_alive()
    stack.finish()


def test_a_node_that_is_gone_is_lost_at_once() -> None:
    stack = Stack(1, 1, "local")
    stack.step(1)
    stack.finish()
    stack.network.cut("a0#1")
    with pytest.raises(PeerLostError, match="a0#1"):
        stack.step(2, silent=frozenset({"a0#1"}))
