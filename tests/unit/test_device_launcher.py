"""What an attention node makes of a step that kernels drive, up to the launch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.anode import GEOMETRY

from kernelflume.anode.block_index import Block
from kernelflume.anode.gpu.launcher import launch_step, retract_step
from kernelflume.anode.kvpool import KvPool
from kernelflume.anode.links import Link
from kernelflume.core.blocks import KEY_BYTES
from kernelflume.core.errors import HandshakeError
from kernelflume.transport.lanes import LaneLayout
from kernelflume.transport.wire import APPEND_DTYPE, PLAN_DTYPE, LaneStep, RowStatus, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.anode.gpu.work import LaneWork

LAYOUT = LaneLayout(GEOMETRY, 8)


@dataclass
class FakeDevice:
    """Remembers what it is asked to launch."""

    files_in_layer: bool = False
    is_open: bool = True
    num_lanes: int = 1
    layout: LaneLayout = LAYOUT
    launched: list[list[LaneWork]] = field(default_factory=list)
    under_way: set[int] = field(default_factory=set)

    def has_ended(self, step: int) -> bool:
        return step not in self.under_way

    def check(self) -> None:
        pass

    def launch(self, work: Sequence[LaneWork], step: int) -> None:
        del step
        self.launched.append(list(work))


class Node:
    def __init__(self, *, num_pages: int = 8, **device: Any) -> None:
        self.pool = KvPool(GEOMETRY, page_tokens=4, num_bytes=num_pages * 4 * GEOMETRY.token_bytes)
        self.device = FakeDevice(**device)
        self.link = Link(
            "w#1",
            layout=LAYOUT,
            buffers=[],
            plans=[],
            kernels=[],
            doorbell=None,
            device=self.device,  # type: ignore[arg-type]
        )

    def step(self, number: int, plan: list[tuple[int, int]], stored: list[tuple[int, int]]) -> Any:
        """Launch a step of (sequence, tokens held) rows that stores (sequence, position) rows."""
        lane = LaneStep(
            np.array([(sequence, 1, held) for sequence, held in plan], PLAN_DTYPE),
            np.array([(sequence, 1, start) for sequence, start in stored], APPEND_DTYPE),
        )
        return launch_step(self.link, Step(number, 0, (lane,)), self.pool)

    def share_last(self, sequence: int, other: int) -> int:
        """Let another sequence hold a sequence's only page too; return that page."""
        block = Block(f"{sequence}".encode().ljust(KEY_BYTES), 0, self.held(sequence))
        self.pool.publish(self.link.held(sequence), [block])
        assert self.pool.share(self.link.held(other), [block]) == 1
        return self.link.held(sequence).pages[-1]

    def held(self, sequence: int) -> int:
        return self.link.sequences[sequence].num_tokens if sequence in self.link.sequences else 0


def test_a_step_attends_to_what_was_held_and_stores_behind_it() -> None:
    node = Node()
    assert node.step(1, [], [(1, 0), (2, 0)]).status is RowStatus.OK
    assert node.step(2, [(1, 1), (2, 1)], [(1, 1), (2, 1)]).status is RowStatus.OK
    [work] = node.device.launched[1]
    assert work.table.last_page_len.tolist() == [1, 1]
    assert node.held(1) == node.held(2) == 2
    assert sorted(work.slots % 4) == [1, 1]


@pytest.mark.parametrize("in_layer", [False, True])
def test_keys_that_come_in_every_layer_are_attended_to_at_once(in_layer: bool) -> None:
    node = Node(files_in_layer=in_layer)
    plan = [(1, 0)] if in_layer else []
    assert node.step(1, plan, [(1, 0)]).status is RowStatus.OK
    [work] = node.device.launched[0]
    assert work.table.last_page_len.tolist() == ([1] if in_layer else [])


def test_another_number_of_tokens_than_planned_is_a_mismatch_and_launches_nothing() -> None:
    node = Node()
    node.step(1, [], [(1, 0)])
    assert node.step(2, [(1, 2)], [(1, 1)]).status is RowStatus.MISMATCH
    assert node.step(3, [(7, 1)], []).status is RowStatus.MISMATCH
    assert len(node.device.launched) == 1
    assert node.held(1) == 1


def test_a_step_that_is_given_up_is_forgotten_once() -> None:
    node = Node()
    node.step(1, [], [(1, 0)])
    free = node.pool.num_free_pages
    node.step(2, [(1, 1)], [(1, 1), (2, 0)])
    retract_step(node.link, 1, node.pool)  # not the last one launched
    assert node.held(1) == 2
    for _ in range(2):
        retract_step(node.link, 2, node.pool)
        assert (node.held(1), node.held(2)) == (1, 0)
        assert node.pool.num_free_pages == free
    assert node.step(3, [(1, 1)], [(1, 1)]).status is RowStatus.OK


def test_two_steps_that_are_given_up_are_forgotten_the_newest_first() -> None:
    node = Node()
    node.step(1, [], [(1, 0)])
    free = node.pool.num_free_pages
    node.step(2, [(1, 1)], [(1, 1), (2, 0)])
    node.step(3, [(1, 2), (2, 1)], [(1, 2), (2, 1)])
    retract_step(node.link, 3, node.pool)
    assert (node.held(1), node.held(2)) == (2, 1)
    retract_step(node.link, 2, node.pool)
    assert (node.held(1), node.held(2)) == (1, 0)
    assert node.pool.num_free_pages == free
    assert node.step(4, [(1, 1)], [(1, 1), (2, 0)]).status is RowStatus.OK


def test_a_row_of_a_sequence_that_found_no_page_asks_nothing_and_stores_nothing() -> None:
    node = Node(num_pages=1)
    node.step(1, [], [(1, 0)])
    assert node.step(2, [(1, 1)], [(1, 1), (2, 0)]).failed == (2,)
    # It was announced before the weight node heard of that.
    answer = node.step(3, [(1, 2), (2, 1)], [(2, 1), (1, 2)])
    assert answer.status is RowStatus.OK
    assert answer.failed == (2,)
    [work] = node.device.launched[2]
    assert work.table.indptr.tolist() == [0, 1, 1]
    assert work.table.last_page_len.tolist() == [2, 0]
    assert work.slots.tolist() == [-1, 2]


@pytest.mark.parametrize("in_layer", [False, True])
def test_a_row_that_attended_to_nothing_is_said_to_have_failed(
    in_layer: bool,
) -> None:
    node = Node(files_in_layer=in_layer)
    node.step(1, [(1, 0), (2, 0)] if in_layer else [], [(1, 0), (2, 0)])
    node.link.end(2, node.pool)
    answer = node.step(2, [(1, 1), (2, 1)], [(1, 1)])  # the other's next token goes to another node
    assert answer.status is RowStatus.OK
    assert answer.failed == (2,)


def test_which_steps_store_a_token_before_an_end() -> None:
    node = Node()
    node.step(1, [], [(1, 0), (2, 0)])
    node.step(2, [(1, 1)], [(1, 1)])
    assert node.link.steps_storing({1: 2}) == [1, 2]
    assert node.link.steps_storing({1: 1}) == [1]
    assert node.link.steps_storing({2: 9, 3: 9}) == [1]
    assert node.link.steps_storing({1: 0}) == []


def test_a_full_pool_fails_the_sequence_that_needs_a_page_and_stores_the_others() -> None:
    node = Node(num_pages=1)
    node.step(1, [], [(1, 0)])
    answer = node.step(2, [(1, 1)], [(2, 0), (1, 1)])
    assert answer.failed == (2,)
    [work] = node.device.launched[1]
    assert work.slots.tolist() == [-1, 1]
    assert node.held(1) == 2


def test_what_the_step_ahead_reads_is_nobody_else_s_before_it_ends() -> None:
    node = Node(num_pages=2)
    node.step(1, [], [(1, 0), (2, 0)])
    for number in (2, 3, 4):
        node.step(number, [(1, number - 1), (2, number - 1)], [(1, number - 1), (2, number - 1)])
    node.device.under_way = {4}
    # Both need a page. The first one's would be enough for the second, but its row in step 4 counts.
    assert node.step(5, [(1, 4), (2, 4)], [(1, 4), (2, 4)]).failed == (1, 2)
    assert node.link.sequences == {}
    assert node.pool.num_free_pages == 0
    assert node.link.steps_reading((1, 2, 3)) == [4, 4]
    node.link.release_dropped(node.pool)
    assert node.pool.num_free_pages == 0
    node.device.under_way = {5}
    node.link.release_dropped(node.pool)
    assert node.pool.num_free_pages == 2
    assert node.link.steps_reading((1, 2)) == []


def test_a_link_that_ends_gives_all_pages_back() -> None:
    node = Node(num_pages=2)
    node.step(1, [], [(1, 0), (2, 0)])
    node.device.under_way = {1}
    assert node.step(2, [], [(3, 0)]).failed == (3,)
    assert list(node.link.holdings) == [1, 2, 3]
    node.link.end_all(node.pool)
    assert node.pool.num_free_pages == 2
    assert node.link.holdings == {}


@pytest.mark.parametrize("in_layer", [False, True])
def test_a_step_reads_the_copy_of_a_last_page_that_others_hold_too(in_layer: bool) -> None:
    node = Node(files_in_layer=in_layer)
    node.step(1, [], [(1, 0), (3, 0)])
    page = node.share_last(1, 2)
    answer = node.step(2, [(2, 1), (3, 1)], [(2, 1), (3, 1)])
    assert (answer.status, answer.failed) == (RowStatus.OK, ())
    [work] = node.device.launched[-1]
    copy = node.link.held(2).pages[-1]
    assert copy != page
    assert work.table.indices.tolist() == [copy, node.link.held(3).pages[-1]]
    assert work.slots.tolist()[0] == copy * 4 + 1
    assert node.link.held(1).pages[-1] == page
    node.step(3, [(2, 2)], [(2, 2)])
    assert node.link.held(2).pages[-1] == copy


def test_a_copy_without_a_page_fails_its_sequence_alone() -> None:
    node = Node(num_pages=2)
    node.step(1, [], [(1, 0), (3, 0)])
    node.share_last(1, 2)
    answer = node.step(2, [(2, 1), (3, 1)], [(2, 1), (3, 1)])
    assert (answer.status, answer.failed) == (RowStatus.OK, (2,))
    [work] = node.device.launched[-1]
    assert work.slots.tolist()[0] == -1
    assert (node.held(2), node.held(3)) == (0, 2)


@pytest.mark.parametrize("device", [{"is_open": False}, {"num_lanes": 0}])
def test_a_step_without_lanes_breaks_the_protocol(device: dict[str, Any]) -> None:
    with pytest.raises(HandshakeError, match="a step of 1 lanes"):
        Node(**device).step(1, [], [(1, 0)])


def test_more_rows_than_a_lane_has_break_the_protocol() -> None:
    with pytest.raises(HandshakeError, match="more than 8 rows"):
        Node().step(1, [], [(sequence, 0) for sequence in range(1, 10)])
