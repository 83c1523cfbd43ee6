from __future__ import annotations

import pytest
from tests.anode import GEOMETRY, with_dtypes

from kernelflume.core.errors import ConfigurationError
from kernelflume.transport.lanes import NUM_APPEND_SLOTS, LaneLayout, row_buckets


@pytest.mark.parametrize("max_rows", [1, 2, 7, 8, 9, 31, 64, 100, 256, 8192])
def test_buckets_ascend_to_the_limit_and_waste_little(max_rows: int) -> None:
    buckets = row_buckets(max_rows)
    assert list(buckets) == sorted(set(buckets))
    assert buckets[0] == 1
    assert buckets[-1] == max_rows
    for rows in range(1, max_rows + 1):
        bucket = buckets[LaneLayout(GEOMETRY, max_rows).bucket_index(rows)]
        assert rows <= bucket <= max(rows, rows * 5 / 4)


def test_there_are_few_buckets() -> None:
    assert len(row_buckets(8192)) == 8 + 4 * 10


def test_a_bucket_is_the_smallest_that_holds_the_rows() -> None:
    layout = LaneLayout(GEOMETRY, 64)
    for index, bucket in enumerate(layout.buckets):
        assert layout.bucket_index(bucket) == index
        if bucket < 64:
            assert layout.bucket_index(bucket + 1) == index + 1


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_sizes_follow_the_geometry(dtype: str, size: int) -> None:
    layout = LaneLayout(with_dtypes(dtype), 10)
    out_bytes = 10 * 6 * 16 * size
    assert layout.query_region_bytes == out_bytes
    assert layout.lse_offset(10) == out_bytes
    assert layout.partial_region_bytes == out_bytes + 10 * 6 * 4
    assert layout.append_slot_bytes == 3 * 10 * 2 * 2 * 16 * size
    assert layout.append_region_bytes == NUM_APPEND_SLOTS * layout.append_slot_bytes
    assert layout.partial_bytes(3) == layout.lse_offset(3) + 3 * 6 * 4


def test_queries_and_keys_may_have_different_formats() -> None:
    layout = LaneLayout(with_dtypes("float32", "bfloat16"), 4)
    assert layout.query_bytes(4) == 4 * 6 * 16 * 4
    assert layout.append_bytes(4) == 3 * 4 * 2 * 2 * 16 * 2


def test_a_lane_without_rows_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one row"):
        LaneLayout(GEOMETRY, 0)


@pytest.mark.parametrize(("num_rows", "graph_rows"), [(1, 1), (2, 2), (3, 4), (5, 8), (9, 12), (12, 12)])
def test_a_step_runs_in_the_smallest_graph_that_holds_it(num_rows: int, graph_rows: int) -> None:
    assert LaneLayout(GEOMETRY, 12).graph_rows(num_rows) == graph_rows
