"""Which rows go where on the device path."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
from tests.decode_rows import chunk

from kernelflume.cuda.exchange import MAX_NODES, NODE_ROUTE, ROUTES_HEADER
from kernelflume.wnode.gpu.lane_routes import LaneRoutes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernelflume.wnode.gpu.device_end import DeviceEnd

MAX_ROWS = 8


class FakeEnd:
    """Writes what it was asked for into the record."""

    def route(self, lane: int, *, num_query_rows: int, num_kv_rows: int) -> np.ndarray:
        record = np.zeros(1, NODE_ROUTE)
        record["remote"] = 100 + lane
        record["num_query_rows"], record["num_kv_rows"] = num_query_rows, num_kv_rows
        return record


CHUNKS = [
    chunk(1, {"a": 5}, "a"),
    chunk(2, {"a": 3, "b": 4}, "b", new_pages=1),
    chunk(3, {}, "b", new_pages=1),
]


def test_rows_ask_every_node_that_holds_something_and_are_stored_by_the_tail_s() -> None:
    nodes = LaneRoutes.of(CHUNKS, tail_attends=False).nodes
    assert nodes["a"].plan == [(1, 1, 5), (2, 1, 3)]
    assert nodes["a"].query_rows == [0, 1]
    assert nodes["b"].plan == [(2, 1, 4)]
    assert nodes["a"].entries == [(1, 1, 5)]
    assert nodes["b"].entries == [(2, 1, 7), (3, 1, 0)]
    assert (nodes["a"].num_new_pages, nodes["b"].num_new_pages) == (0, 2)


def test_a_tail_that_attends_to_the_row_s_own_key_is_asked_also_when_it_holds_nothing_yet() -> None:
    nodes = LaneRoutes.of(CHUNKS, tail_attends=True).nodes
    assert nodes["b"].plan == [(2, 1, 4), (3, 1, 0)]
    assert nodes["b"].query_rows == [1, 2]


def test_the_tables_say_for_every_row_where_its_partial_arrives() -> None:
    routes = LaneRoutes.of(CHUNKS, tail_attends=False)
    ends = cast("Mapping[str, DeviceEnd]", {"a": FakeEnd(), "b": FakeEnd()})
    memory = routes.tables(1, ends, MAX_ROWS)
    [header] = memory[: ROUTES_HEADER.itemsize].view(ROUTES_HEADER)
    tables = memory[ROUTES_HEADER.itemsize :].view(np.int32).reshape(3, MAX_NODES, MAX_ROWS)
    assert (header["num_nodes"], header["num_rows"], header["max_rows"], header["lane"]) == (
        2,
        3,
        MAX_ROWS,
        1,
    )
    assert header["nodes"]["remote"][:2].tolist() == [101, 101]
    assert header["nodes"]["num_query_rows"][:2].tolist() == [2, 1]
    assert header["nodes"]["num_kv_rows"][:2].tolist() == [1, 2]
    assert tables[0, 0, :2].tolist() == [0, 1]
    assert tables[1, 0].tolist() == [0, 1, -1, -1, -1, -1, -1, -1]
    assert tables[1, 1].tolist() == [-1, 0, -1, -1, -1, -1, -1, -1]
    assert tables[2, 1, :2].tolist() == [1, 2]
    assert (tables[1, 2:] == -1).all()


def test_the_shape_stays_while_only_lengths_grow() -> None:
    longer = [chunk(1, {"a": 6}, "a"), chunk(2, {"a": 3, "b": 5}, "b"), chunk(3, {"b": 1}, "b")]
    before = LaneRoutes.of(CHUNKS, tail_attends=True).shape
    assert LaneRoutes.of(longer, tail_attends=True).shape == before
    assert LaneRoutes.of(longer[:2], tail_attends=True).shape != before
