"""Which rows each microbatch takes, and which steps are captured for that."""

from __future__ import annotations

import pytest
from tests.anode import GEOMETRY
from tests.decode_rows import chunk

from kernelflume.transport.lanes import LaneLayout
from kernelflume.wnode.batch import StepBatch
from kernelflume.wnode.pipeline.lane_plan import LanePlan
from kernelflume.wnode.pipeline.load import Load
from kernelflume.wnode.pipeline.split import split

CHUNKS = StepBatch.of(
    [
        *(chunk(number, {"a": 10 * number}, "a") for number in range(1, 6)),
        *(chunk(number, {"b": 100 * number}, "b") for number in range(6, 10)),
        chunk(10, {"a": 50, "b": 70}, "b"),
    ]
).chunks


def test_every_row_is_in_one_part_and_in_its_order() -> None:
    for num_parts in (1, 2, 3, 4):
        parts = split(CHUNKS, num_parts)
        assert len(parts) == num_parts
        assert sorted(id(row) for part in parts for row in part) == sorted(map(id, CHUNKS))
        assert all(
            [CHUNKS.index(row) for row in part] == sorted(CHUNKS.index(row) for row in part) for part in parts
        )
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1


def test_both_parts_have_rows_of_every_node_and_nearly_as_many_tokens() -> None:
    first, second = split(CHUNKS, 2)
    for node_id in ("a", "b"):
        held = [sum(row.sequence.route.num_tokens_on(node_id) for row in part) for part in (first, second)]
        assert min(held) > 0.6 * max(held)  # of five rows one part has three


def test_parts_stay_as_they_are_while_every_sequence_grows() -> None:
    def numbers(grown: int) -> list[list[int]]:
        rows = [chunk(number, {"a": 10 * number + grown}, "a") for number in range(1, 8)]
        return [[row.sequence.sequence_id for row in part] for part in split(rows, 2)]

    assert numbers(0) == numbers(1) == numbers(500)


def test_fewer_rows_than_parts_leave_parts_empty() -> None:
    assert [len(part) for part in split(CHUNKS[:1], 2)] == [1, 0]


def test_the_load_is_that_of_the_node_that_reads_the_most() -> None:
    assert Load.of(CHUNKS) == Load(10, 600 + 700 + 800 + 900 + 70)
    assert Load.of([]) == Load(0, 0)


@pytest.mark.parametrize(
    ("other", "alike"), [(Load(11, 1090), True), (Load(12, 1000), False), (Load(10, 880), False)]
)
def test_loads_within_a_tenth_are_alike(other: Load, alike: bool) -> None:
    assert other.is_like(Load(10, 1000), 0.1) is alike


def test_auto_captures_one_microbatch_of_all_rows_and_two_of_half() -> None:
    plan = LanePlan.of("auto", 48)
    assert (plan.num_lanes, plan.max_rows, plan.fixed_count) == (2, 48, None)
    assert [rows for count, rows in plan.steps if count == 1] == [1, 2, 4, 8, 16, 32, 48]
    assert [rows for count, rows in plan.steps if count == 2] == [1, 2, 4, 8, 16, 32]


@pytest.mark.parametrize(("microbatches", "lanes", "max_rows"), [("1", 1, 50), ("2", 2, 25), ("4", 4, 13)])
def test_a_fixed_number_shares_the_rows_among_its_lanes(microbatches: str, lanes: int, max_rows: int) -> None:
    plan = LanePlan.of(microbatches, 50)
    assert (plan.num_lanes, plan.max_rows, plan.fixed_count) == (lanes, max_rows, lanes)
    assert {count for count, _ in plan.steps} == {lanes}
    assert plan.steps[-1][1] == max_rows


@pytest.mark.parametrize("microbatches", ["auto", "1", "2", "4"])
@pytest.mark.parametrize("max_step_rows", [1, 2, 3, 7, 33, 48, 64, 100])
def test_every_step_that_may_come_is_captured(microbatches: str, max_step_rows: int) -> None:
    plan = LanePlan.of(microbatches, max_step_rows)
    layout = LaneLayout(GEOMETRY, plan.max_rows)
    counts = {count for count, _ in plan.steps}
    for rows in range(1, max_step_rows + 1):
        for count in counts:
            assert (count, layout.graph_rows(-(-rows // count))) in plan.steps
