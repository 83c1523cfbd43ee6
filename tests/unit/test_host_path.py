"""The host path without a GPU: both sides' lanes over the in-memory transport, and graphs that are played."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.anode import GEOMETRY
from tests.host_pair import LAYERS, LAYOUT, HostPair

from kernelflume.anode.gpu.host_lane import MAX_EARLY, HostLane
from kernelflume.core.errors import HandshakeError, PeerLostError, UnavailableError
from kernelflume.core.regions import DeviceLanes, LanePath, MemoryRegion
from kernelflume.cuda.flags import FlagKind, StepFlags
from kernelflume.transport.loopback import LoopbackNetwork, LoopbackTransport
from kernelflume.transport.wire import Kind, LaneData, decode
from kernelflume.wnode.gpu.host_drive import Awaited, LaneDrive, Wait
from kernelflume.wnode.gpu.host_exchange import LaneDrives

if TYPE_CHECKING:
    from kernelflume.wnode.gpu.host_drive import LanePeer


class Clock:
    def __init__(self) -> None:
        self.time_s = 0.0

    def now(self) -> float:
        return self.time_s


@dataclass
class Peer:
    """Remembers what it is sent."""

    name: str = "a#1"
    asks: bool = True
    stores: bool = True
    has_launched: bool = True
    partials: int = 0
    """Layers that it has answered."""
    sent: list[tuple[str, int]] = field(default_factory=list)

    def post_query(self, layer: int) -> None:
        self.sent.append(("query", layer))

    def post_keys_values(self, layer: int) -> None:
        self.sent.append(("keys and values", layer))

    def has_partial(self, layer: int) -> bool:
        return layer < self.partials


def flags_of_step() -> StepFlags:
    flags = StepFlags(LAYERS, pinned=False)
    flags.clear()
    return flags


# --- the weight node's drive ---------------------------------------------------------------------


def test_a_layer_is_done_when_every_node_that_was_asked_has_answered() -> None:
    flags = flags_of_step()
    nodes = [Peer("a#1"), Peer("b#1"), Peer("c#1", asks=False)]
    drive = LaneDrive(flags, nodes, num_layers=LAYERS, in_layer=False)
    assert not drive.turn()
    assert drive.waits_for == Wait(Awaited.QUERY, 0, "")
    flags.set(FlagKind.QUERY, 0)
    nodes[0].partials = 1
    assert not drive.turn()
    assert drive.waits_for == Wait(Awaited.PARTIAL, 0, "b#1")
    assert not flags.is_set(FlagKind.ATTENTION, 0)
    nodes[1].partials = 1
    drive.turn()
    assert flags.is_set(FlagKind.ATTENTION, 0)
    assert not flags.is_set(FlagKind.ATTENTION, 1)
    assert [node.sent for node in nodes] == [[("query", 0)], [("query", 0)], []]


def test_keys_and_values_leave_once_a_step_behind_the_answer_to_it() -> None:
    flags = flags_of_step()
    node = Peer(partials=LAYERS, has_launched=False)
    drive = LaneDrive(flags, [node, Peer("b#1", asks=False, stores=False)], num_layers=LAYERS, in_layer=False)
    flags.set_all(FlagKind.QUERY)
    assert not drive.turn()
    assert drive.waits_for == Wait(Awaited.KEYS_VALUES, 0, "")
    flags.set(FlagKind.KEYS_VALUES, 0)
    assert not drive.turn()
    assert drive.waits_for == Wait(Awaited.LAUNCH, 0, "a#1")
    node.has_launched = True
    assert drive.turn()
    assert drive.waits_for is None
    assert node.sent == [*(("query", layer) for layer in range(LAYERS)), ("keys and values", 0)]
    assert drive.turn()


def test_in_layer_keys_and_values_follow_each_query() -> None:
    flags = flags_of_step()
    node, reader = Peer(partials=LAYERS), Peer("b#1", stores=False, partials=LAYERS)
    drive = LaneDrive(flags, [node, reader], num_layers=LAYERS, in_layer=True)
    flags.set_all(FlagKind.QUERY, FlagKind.KEYS_VALUES)
    assert drive.turn()
    assert node.sent == [(kind, layer) for layer in range(LAYERS) for kind in ("query", "keys and values")]
    assert reader.sent == [("query", layer) for layer in range(LAYERS)]
    assert all(flags.is_set(FlagKind.ATTENTION, layer) for layer in range(LAYERS))


def drives(peers: dict[int, list[Peer]], num_lanes: int = 1) -> tuple[LaneDrives, list[StepFlags], Clock]:
    clock = Clock()
    flags = [StepFlags(LAYERS, pinned=False) for _ in range(num_lanes)]
    lanes = LaneDrives(flags, clock, timeout_s=5)
    lanes.begin(cast("dict[int, list[LanePeer]]", peers), num_layers=LAYERS, in_layer=False)
    return lanes, flags, clock


def test_lanes_go_their_ways_and_the_step_is_done_when_all_are() -> None:
    lanes, flags, _ = drives({0: [Peer(partials=LAYERS)], 1: []}, num_lanes=2)
    flags[1].set_all(FlagKind.QUERY, FlagKind.KEYS_VALUES)
    assert not lanes.turn()
    assert flags[1].is_set(FlagKind.ATTENTION, LAYERS - 1)
    assert not flags[0].is_set(FlagKind.ATTENTION, 0)
    flags[0].set_all(FlagKind.QUERY, FlagKind.KEYS_VALUES)
    assert lanes.turn()


def test_a_node_that_does_not_answer_in_time_is_named_with_the_layer() -> None:
    lanes, flags, clock = drives({0: [Peer(partials=1)]})
    flags[0].set_all(FlagKind.QUERY)
    lanes.turn()
    clock.time_s = 4
    lanes.turn()
    clock.time_s = 6
    with pytest.raises(PeerLostError, match="a#1 is lost: no partial of layer 1 within 5 s"):
        lanes.turn()


def test_every_layer_has_the_whole_deadline() -> None:
    lanes, flags, clock = drives({0: [Peer(partials=LAYERS)]})
    for layer in range(LAYERS):
        clock.time_s += 4
        flags[0].set(FlagKind.QUERY, layer)
        assert not lanes.turn()


def test_the_own_graph_s_silence_is_no_node_s_fault() -> None:
    lanes, _, clock = drives({0: [Peer()]})
    lanes.turn()
    clock.time_s = 6
    with pytest.raises(UnavailableError, match="own graph gave no queries of layer 0 within 5 s"):
        lanes.turn()


def test_a_step_that_is_given_up_posts_nothing_more_and_lets_the_graph_run_through() -> None:
    node = Peer()
    lanes, flags, _ = drives({0: [node]})
    lanes.abort()
    flags[0].set_all(FlagKind.QUERY)
    assert lanes.turn()
    assert node.sent == []
    assert all(flags[0].is_set(FlagKind.ATTENTION, layer) for layer in range(LAYERS))


# --- the attention node's lane --------------------------------------------------------------------


class ALane:
    def __init__(self, *, in_layer: bool = False) -> None:
        self.flags = [StepFlags(LAYERS, pinned=False) for _ in range(2)]
        self.posted: list[tuple[int, LaneData]] = []
        self.lane = HostLane(
            0,
            self.flags,
            num_layers=LAYERS,
            in_layer=in_layer,
            post=lambda num_rows, notice: self.posted.append((num_rows, notice)),
        )

    def set_of(self, step: int, kind: FlagKind) -> list[int]:
        return [layer for layer in range(LAYERS) if self.flags[step % 2].is_set(kind, layer)]


def test_a_query_sets_its_flag_and_a_computed_layer_is_posted_once() -> None:
    node = ALane()
    node.lane.begin(4, num_rows=3, stores=True)
    assert not node.lane.drive()
    node.lane.receive(LaneData(Kind.LANE_QUERY, 0, 0, 4))
    assert node.set_of(4, FlagKind.QUERY) == [0]
    node.flags[0].set(FlagKind.ATTENTION, 0)
    assert node.lane.drive()
    assert not node.lane.drive()
    assert node.posted == [(3, LaneData(Kind.LANE_PARTIAL, 0, 0, 4))]


def test_a_step_launched_ahead_has_flags_of_its_own_and_is_answered_in_order() -> None:
    node = ALane()
    node.lane.begin(4, num_rows=1, stores=True)
    node.lane.begin(5, num_rows=1, stores=True)
    node.lane.receive(LaneData(Kind.LANE_QUERY, 0, 0, 5))
    assert node.set_of(4, FlagKind.QUERY) == []
    assert node.set_of(5, FlagKind.QUERY) == [0]
    node.flags[1].set(FlagKind.ATTENTION, 0)  # cannot be, before step 4 is done
    assert not node.lane.drive()
    node.flags[0].set_all(FlagKind.ATTENTION)
    for _ in range(LAYERS + 1):
        assert node.lane.drive()
    assert [notice.step for _, notice in node.posted] == [4] * LAYERS + [5]


def test_data_that_overtakes_its_announcement_is_kept() -> None:
    node = ALane(in_layer=True)
    node.lane.receive(LaneData(Kind.LANE_APPEND, 0, 0, 8))
    node.lane.receive(LaneData(Kind.LANE_QUERY, 0, 0, 8))
    node.lane.begin(8, num_rows=1, stores=True)
    assert node.set_of(8, FlagKind.QUERY) == node.set_of(8, FlagKind.KEYS_VALUES) == [0]
    assert "own attention of layer 0 of step 8" in node.lane.waits_for


def test_data_of_a_step_that_is_over_sets_nothing() -> None:
    node = ALane()
    node.lane.begin(4, num_rows=1, stores=True)
    node.lane.begin(6, num_rows=1, stores=True)
    node.lane.receive(LaneData(Kind.LANE_QUERY, 0, 1, 4))
    assert node.set_of(6, FlagKind.QUERY) == []


def test_a_node_that_stores_nothing_waits_for_no_keys_and_one_that_is_not_asked_for_no_queries() -> None:
    node = ALane(in_layer=True)
    node.lane.begin(4, num_rows=2, stores=False)
    assert len(node.set_of(4, FlagKind.KEYS_VALUES)) == LAYERS
    assert node.set_of(4, FlagKind.QUERY) == []
    node.lane.begin(5, num_rows=0, stores=True)
    assert len(node.set_of(5, FlagKind.QUERY)) == LAYERS
    assert node.set_of(5, FlagKind.KEYS_VALUES) == []


def test_a_step_that_is_given_up_runs_through_and_is_not_answered() -> None:
    node = ALane()
    node.lane.begin(4, num_rows=1, stores=True)
    node.lane.begin(5, num_rows=1, stores=True)
    node.lane.release(5)
    assert len(node.set_of(5, FlagKind.QUERY)) == len(node.set_of(5, FlagKind.KEYS_VALUES)) == LAYERS
    assert node.set_of(4, FlagKind.QUERY) == []
    for flags in node.flags:
        flags.set_all(FlagKind.ATTENTION)
    while node.lane.drive():
        pass
    assert {notice.step for _, notice in node.posted} == {4}


@pytest.mark.parametrize(
    "notice", [LaneData(Kind.LANE_QUERY, 0, LAYERS, 4), LaneData(Kind.LANE_PARTIAL, 0, 0, 4)]
)
def test_what_a_lane_does_not_have_breaks_the_protocol(notice: LaneData) -> None:
    with pytest.raises(HandshakeError, match="of layer"):
        ALane().lane.receive(notice)


def test_early_data_is_bounded() -> None:
    node = ALane()
    for step in range(MAX_EARLY):
        node.lane.receive(LaneData(Kind.LANE_QUERY, 0, 0, step + 1))
    with pytest.raises(HandshakeError, match="before it was announced"):
        node.lane.receive(LaneData(Kind.LANE_QUERY, 0, 0, 99))


# --- both sides together ----------------------------------------------------------------------------


def pair_of(query_first: str = "local") -> HostPair:
    network = LoopbackNetwork()
    return HostPair(
        LoopbackTransport("w#1", network), LoopbackTransport("a#1", network), query_first=query_first
    )


@pytest.mark.parametrize("query_first", ["local", "paper", "off"])
def test_steps_bring_queries_there_partials_back_and_keys_into_their_slots(query_first: str) -> None:
    pair = pair_of(query_first)
    for step, rows in enumerate((5, 5, 1, 8), start=1):
        pair.play(step, rows)


def test_the_record_for_the_kernels_names_staging_and_the_bucket_of_stored_rows() -> None:
    pair = pair_of()
    [route] = pair.end.route(0, num_query_rows=3, num_kv_rows=7)
    assert route["partial_counter"] == 0
    assert route["partial_out"] - route["partial_lse"] == LAYOUT.graph_out_offset
    assert LAYOUT.graph_out_offset >= LAYOUT.max_rows * GEOMETRY.num_query_heads * 4
    assert LAYOUT.graph_out_offset % 256 == 0
    assert route["staged_kv_rows"] == LAYOUT.buckets[LAYOUT.bucket_index(7)]
    [alone] = pair.end.route(0, num_query_rows=0, num_kv_rows=0)
    assert alone["staged_kv_rows"] == 0


def test_opening_writes_into_every_region_once_and_means_nothing() -> None:
    pair = pair_of()
    opened = [cast("LaneData", decode(notice.payload)) for notice in pair.a.poll()]
    assert [(notice.kind, notice.step) for notice in opened] == [(Kind.LANE_QUERY, 0), (Kind.LANE_APPEND, 0)]
    for notice in opened:
        pair.lane.receive(notice)
    pair.end.receive(LaneData(Kind.LANE_PARTIAL, 0, 0, 0))
    assert pair.end.is_open
    assert pair.end.is_quiet
    pair.lane.begin(2, num_rows=1, stores=True)
    assert not pair.flags[0].is_set(FlagKind.QUERY, 0)
    assert not pair.flags[0].is_set(FlagKind.KEYS_VALUES, 0)


def test_an_unanswered_query_keeps_the_memory() -> None:
    pair = pair_of()
    pair.end.post_query(0, step=3, layer=0, num_rows=1)
    assert not pair.end.is_quiet
    assert not pair.end.has_partial(0, step=3, layer=0)
    pair.end.receive(LaneData(Kind.LANE_PARTIAL, 0, 0, 3))
    assert pair.end.is_quiet
    assert pair.end.has_partial(0, step=3, layer=0)
    assert not pair.end.has_partial(0, step=3, layer=1)


@pytest.mark.parametrize(
    "answer",
    [
        DeviceLanes(8, "local", ((MemoryRegion(1, 2), MemoryRegion(1, 2)),), LanePath.HOST),
        DeviceLanes(8, "local", ((MemoryRegion(1, 2), MemoryRegion(1, 2), MemoryRegion(1, 2)),)),
    ],
)
def test_lanes_of_another_shape_or_path_are_refused(answer: Any) -> None:
    with pytest.raises(HandshakeError, match="are needed on the host path"):
        pair_of().end.connect("a#1", answer)


def test_a_node_that_vanishes_is_lost_at_the_next_post() -> None:
    pair = pair_of()
    pair.a.close()
    with pytest.raises(PeerLostError):
        pair.end.post_query(0, step=1, layer=0, num_rows=1)
