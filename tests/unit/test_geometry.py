from __future__ import annotations

import pytest
from tests.anode import GEOMETRY, with_dtypes

from kernelflume.core.errors import ConfigurationError
from kernelflume.core.geometry import FP8, KvGeometry, kv_dtype_of
from kernelflume.transport.lanes import LaneLayout


@pytest.mark.parametrize(
    ("asked", "dtype", "expected"),
    [
        ("auto", "float32", "float32"),
        ("auto", "bfloat16", "bfloat16"),
        ("fp8", "bfloat16", FP8),
        ("fp8_e4m3", "float32", FP8),
        (FP8, "float16", FP8),
        ("bfloat16", "bfloat16", "bfloat16"),
        ("bfloat16", "float32", "bfloat16"),
        ("float16", "float32", "float16"),
    ],
)
def test_the_format_of_keys_and_values(asked: str, dtype: str, expected: str) -> None:
    assert kv_dtype_of(asked, dtype) == expected


@pytest.mark.parametrize(("asked", "dtype"), [("float32", "bfloat16"), ("float16", "bfloat16")])
def test_a_format_that_saves_nothing_is_refused(asked: str, dtype: str) -> None:
    with pytest.raises(ConfigurationError, match=f"kv_cache_dtype: .* {dtype} become no smaller in {asked}"):
        kv_dtype_of(asked, dtype)


def test_an_unknown_format_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigurationError, match="'fp8_e5m2' is not one of auto, fp8, fp8_e4m3, float32"):
        kv_dtype_of("fp8_e5m2", "bfloat16")


def test_queries_are_never_in_fp8() -> None:
    fields = GEOMETRY.to_dict() | {"dtype": FP8}
    with pytest.raises(
        ConfigurationError, match="dtype 'float8_e4m3fn' is not one of float32, bfloat16, float16"
    ):
        KvGeometry.from_dict(fields)


def test_fp8_takes_half_the_bytes_in_the_pool_and_on_the_wire() -> None:
    half, whole = with_dtypes("bfloat16", FP8), with_dtypes("bfloat16")
    assert half.kv_row_bytes == 2 * 2 * 16
    assert 2 * half.kv_row_bytes == whole.kv_row_bytes
    assert 2 * half.token_bytes == whole.token_bytes
    assert half.query_row_bytes == whole.query_row_bytes
    assert 2 * LaneLayout(half, 9).append_slot_bytes == LaneLayout(whole, 9).append_slot_bytes
    assert KvGeometry.from_dict(half.to_dict()) == half
