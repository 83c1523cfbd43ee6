"""What an attention node's loop does for steps that need it while they run (the host path)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from tests.anode import GEOMETRY, SilentDoorbell

from kernelflume.anode.block_index import Block
from kernelflume.anode.exchange import Exchange
from kernelflume.anode.kernels import choose_kernel
from kernelflume.anode.kvpool import KvPool
from kernelflume.anode.lane import LaneBuffers
from kernelflume.anode.links import Link
from kernelflume.core.blocks import KEY_BYTES
from kernelflume.core.errors import HandshakeError, PeerLostError
from kernelflume.core.regions import DeviceLanes
from kernelflume.runtime.clock import ManualClock
from kernelflume.transport import wire
from kernelflume.transport.lanes import LaneLayout
from kernelflume.transport.loopback import LoopbackNetwork, LoopbackTransport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.anode.gpu.work import LaneWork
    from kernelflume.transport.doorbell import Doorbell

LAYOUT = LaneLayout(GEOMETRY, 8)
QUERY = wire.LaneData(wire.Kind.LANE_QUERY, 0, 0, 1)


@dataclass
class FakeLanes:
    """A driven ``GraphLink`` whose steps end after so many turns, or when they are released."""

    clock: ManualClock
    turns_a_step: int = 3
    layout: LaneLayout = LAYOUT
    files_in_layer: bool = False
    is_driven: bool = True
    is_open: bool = True
    num_lanes: int = 1
    num_bytes: int = 0
    lanes: DeviceLanes = field(default_factory=lambda: DeviceLanes(8, "local", ()))
    turns_left: int = 0
    events: list[object] = field(default_factory=list)
    error: Exception | None = None

    @property
    def is_idle(self) -> bool:
        return self.turns_left == 0

    def has_ended(self, step: int) -> bool:
        launches = [event for event in self.events if isinstance(event, tuple) and event[0] == "launch"]
        return self.is_idle or launches[-1] != ("launch", step)

    def open(self, weight_node: str) -> None:
        self.events.append(("open", weight_node))

    def can_launch(self, step: int) -> bool:
        del step
        return self.is_idle

    def launch(self, work: Sequence[LaneWork], step: int) -> None:
        del work
        assert self.is_idle
        self.events.append(("launch", step))
        self.turns_left = self.turns_a_step

    def receive(self, notice: wire.LaneData) -> None:
        if notice.layer >= GEOMETRY.num_layers:
            raise HandshakeError("no such layer")
        self.events.append(notice)

    def drive(self) -> bool:
        self.clock.advance(1e-4)
        if self.error is not None and self.turns_left:
            raise self.error
        self.turns_left = max(0, self.turns_left - 1)
        return False

    def check(self) -> None:
        pass

    def release(self, step: int) -> None:
        self.events.append(("release", step))
        self.turns_left = 0

    def close_views(self) -> None:
        self.turns_left = 0
        self.events.append("closed")

    def close(self) -> None:
        pass


class Node:
    def __init__(self, names: Sequence[str] = ("w#1",), turns_a_step: int = 3) -> None:
        network = LoopbackNetwork()
        self.transport = LoopbackTransport("a#1", network)
        self.clock = ManualClock()
        self.pool = KvPool(GEOMETRY, page_tokens=4, num_bytes=16 * 4 * GEOMETRY.token_bytes)
        self.exchange = Exchange(
            transport=self.transport,
            doorbell=cast("Doorbell", SilentDoorbell()),
            pool=self.pool,
            clock=self.clock,
        )
        self.weights: dict[str, LoopbackTransport] = {}
        self.lanes: dict[str, FakeLanes] = {}
        self.links: dict[str, Link] = {}
        for name in names:
            self.weights[name] = LoopbackTransport(name, network)
            self.weights[name].connect("a#1", b"a#1")
            self.transport.connect(name, name.encode())
            self.lanes[name] = FakeLanes(self.clock, turns_a_step)
            self.links[name] = Link(
                name,
                layout=LAYOUT,
                buffers=[LaneBuffers(LAYOUT, self.transport, self.pool.device)],
                plans=[],
                kernels=[choose_kernel("auto", self.pool)],
                doorbell=None,
                device=self.lanes[name],
            )
            self.exchange.adopt(self.links[name])

    def send(self, notice: wire.WireNotice, name: str = "w#1") -> None:
        self.weights[name].notify("a#1", notice.encode())

    def turn(self) -> None:
        self.exchange.turn(self.transport.poll())

    def answers(self, name: str = "w#1") -> list[wire.WireNotice]:
        return [wire.decode(notice.payload) for notice in self.weights[name].poll()]


def step(number: int, stored: Sequence[tuple[int, int]] = ((1, 0),)) -> wire.Step:
    """A step that stores (sequence, position) rows and asks nothing."""
    entries = np.array([(sequence, 1, start) for sequence, start in stored], wire.APPEND_DTYPE)
    return wire.Step(number, 0, (wire.LaneStep(np.empty(0, wire.PLAN_DTYPE), entries),))


def test_data_goes_to_the_lanes_at_once_also_before_its_step() -> None:
    node = Node()
    node.send(QUERY)
    node.send(step(1))
    node.turn()
    assert node.lanes["w#1"].events == [QUERY, ("launch", 1)]
    assert [type(answer) for answer in node.answers()] == [wire.Stepped]


def test_a_turn_goes_on_while_a_step_needs_it_but_not_for_ever() -> None:
    node = Node(turns_a_step=10)
    node.send(step(1))
    node.turn()
    assert not node.exchange.is_driving
    endless = Node(turns_a_step=10**6)
    endless.send(step(1))
    endless.turn()
    assert endless.exchange.is_driving


def test_a_launch_that_would_wait_for_this_loop_drives_meanwhile() -> None:
    node = Node(turns_a_step=50)
    for number in (1, 2):
        node.send(step(number, [(1, number - 1)]))
        node.turn()
    assert node.lanes["w#1"].events == [("launch", 1), ("launch", 2)]


def test_a_step_that_is_given_up_is_let_go_before_its_tokens_are_forgotten() -> None:
    node = Node(turns_a_step=10**6)
    node.send(step(1))
    node.turn()
    assert node.links["w#1"].sequences[1].num_tokens == 1
    node.send(wire.Retract(1))
    node.turn()
    assert ("release", 1) in node.lanes["w#1"].events
    assert 1 not in node.links["w#1"].sequences
    assert not node.exchange.is_driving


def test_steps_are_launched_in_order_and_only_so_many_may_wait() -> None:
    node = Node()
    for number in (1, 2):
        node.send(step(number, [(1, number - 1)]))
    node.turn()
    assert node.lanes["w#1"].events == [("launch", 1), ("launch", 2)]
    # These rely on an append that never comes.
    for number in (3, 4, 5):
        node.send(wire.Step(number, 9, step(number).lanes))
    node.turn()
    assert node.exchange.links == ()


def test_a_retract_launches_the_steps_that_wait_before_it() -> None:
    node = Node()
    for number in (1, 2):
        node.send(wire.Step(number, 9, step(number, [(1, number - 1)]).lanes))
    node.turn()
    assert node.lanes["w#1"].events == []
    node.send(wire.Retract(2))
    node.send(wire.Retract(1))
    node.turn()
    launched = [event for event in node.lanes["w#1"].events if cast("Any", event)[0] == "launch"]
    assert launched == [("launch", 1), ("launch", 2)]
    assert 1 not in node.links["w#1"].sequences


def test_a_free_waits_only_for_steps_that_store_something_of_the_sequence() -> None:
    node = Node(turns_a_step=10**6)
    node.send(step(1, [(1, 0)]))
    node.turn()
    node.send(wire.Free((2,)))
    node.turn()
    assert node.exchange.is_driving
    assert [type(answer) for answer in node.answers()] == [wire.Stepped, wire.Freed]
    node.lanes["w#1"].turns_left = 20
    node.send(wire.Free((1,)))
    node.turn()
    assert not node.exchange.is_driving
    assert 1 not in node.links["w#1"].sequences


def test_a_free_of_what_was_dropped_waits_for_the_step_that_reads_it() -> None:
    node = Node(turns_a_step=10**6)
    node.send(step(1, [(1, 0)]))
    node.turn()
    link, taken = node.links["w#1"], node.pool.book.allocate(node.pool.num_free_pages)
    assert link.take_slot(2, 0, node.pool) is None
    assert link.take_slot(1, 0, node.pool) is None  # a position that it holds drops it too
    assert node.pool.num_free_pages == 0
    node.lanes["w#1"].turns_left = 20
    node.send(wire.Free((1,)))
    node.turn()
    [_, freed] = node.answers()
    assert freed == wire.Freed(1)
    node.pool.book.release(taken)


def named(sequence: int, end: int) -> wire.Publish:
    """A notice that names a sequence's first block, of ``end`` tokens."""
    return wire.Publish(sequence, 0, np.array([(b"k" * 16, 0, end)], wire.BLOCK_DTYPE))


def test_a_name_waits_for_the_steps_that_store_what_it_names_and_for_no_other() -> None:
    node = Node(turns_a_step=10**6)
    node.send(step(1, [(1, 0)]))
    node.turn()
    node.lanes["w#1"].turns_left = 0
    node.send(step(2, [(1, 1)]))
    node.send(named(1, 1))
    node.turn()
    # The second step may need nodes that wait for another weight node's.
    assert node.exchange.is_driving
    assert [type(answer) for answer in node.answers()] == [wire.Stepped, wire.Stepped, wire.Published]
    node.lanes["w#1"].turns_left = 20
    node.send(named(1, 2))
    node.turn()
    assert not node.exchange.is_driving
    assert [type(answer) for answer in node.answers()] == [wire.Published]


def test_a_retract_files_first_what_the_step_relies_on() -> None:
    node = Node()
    entries = np.array([(1, 2, 0)], wire.APPEND_DTYPE)
    node.send(wire.Append(0, 0, 1, 2, entries))
    lane = wire.LaneStep(np.array([(1, 1, 2)], wire.PLAN_DTYPE), np.array([(1, 1, 2)], wire.APPEND_DTYPE))
    node.send(wire.Step(1, 1, (lane,)))
    node.send(wire.Retract(1))
    node.turn()
    answers = {type(answer): answer for answer in node.answers()}
    assert cast("Any", answers[wire.Stepped]).status is wire.RowStatus.OK
    assert node.links["w#1"].sequences[1].num_tokens == 2


def test_one_weight_node_s_append_waits_for_the_other_s_step_and_drives_it() -> None:
    node = Node(("w#1", "v#1"), turns_a_step=100)
    node.send(step(1), "v#1")
    node.turn()
    assert node.exchange.is_driving
    node.exchange._await_driven()
    assert not node.exchange.is_driving
    assert node.exchange.links == ("w#1", "v#1")


def test_a_launch_that_copies_a_page_first_waits_for_no_other_step() -> None:
    """The other step may need a node that waits in turn for this one's."""
    node = Node(("w#1", "v#1"), turns_a_step=1)
    node.send(step(1))
    node.turn()
    block = Block(b"name".ljust(KEY_BYTES), 0, 1)
    node.pool.publish(node.links["w#1"].held(1), [block])
    assert node.pool.share(node.links["w#1"].held(2), [block]) == 1
    node.lanes["v#1"].turns_a_step = 10**6
    node.send(step(1), "v#1")
    node.turn()
    assert node.exchange.is_driving
    node.send(step(2, [(1, 1)]))
    node.exchange.turn(node.transport.poll())
    assert not node.lanes["v#1"].is_idle
    assert node.lanes["w#1"].events[-1] == ("launch", 2)
    assert node.links["w#1"].held(1).pages[-1] != node.links["w#1"].held(2).pages[-1]


def test_a_step_that_gets_no_queries_ends_its_link_alone() -> None:
    node = Node(("w#1", "v#1"), turns_a_step=10**6)
    node.lanes["v#1"].error = PeerLostError("v#1", "no query of layer 0 of step 1, lane 0 within 20 s")
    node.send(step(1), "v#1")
    node.turn()
    assert node.exchange.links == ("w#1",)
    assert node.lanes["v#1"].events[-1] == "closed"


def test_data_for_lanes_that_are_not_there_breaks_the_protocol() -> None:
    node = Node(("w#1", "v#1"))
    node.links["v#1"].device = None
    node.send(QUERY, "v#1")
    node.send(wire.LaneData(wire.Kind.LANE_QUERY, 0, GEOMETRY.num_layers, 1), "w#1")
    node.turn()
    assert node.exchange.links == ()
