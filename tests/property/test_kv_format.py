"""Rounding keys and values to the pool's format, and back."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernelflume.tensor.kv_format import round_to_format, widened

FP8 = torch.float8_e4m3fn
WIDER = [torch.float32, torch.bfloat16, torch.float16]


def all_fp8() -> torch.Tensor:
    """Every number of the format, in a shape whose last dimension is not all."""
    numbers = torch.arange(256, dtype=torch.uint8).view(FP8)
    return numbers[~numbers.float().isnan()].view(2, 127)


@pytest.mark.parametrize("dtype", WIDER)
def test_every_number_is_widened_exactly(dtype: torch.dtype) -> None:
    wide = widened(all_fp8(), dtype)
    assert wide.dtype is dtype
    assert torch.equal(wide.double(), all_fp8().double())
    # Zero keeps its sign.
    assert torch.equal(wide.signbit(), all_fp8().float().signbit())


def test_what_is_widened_may_lie_scattered() -> None:
    numbers = all_fp8()[:, ::3]
    assert torch.equal(widened(numbers, torch.float32), numbers.float())


def test_formats_of_16_bits_are_widened_too() -> None:
    numbers = torch.randn(9).to(torch.bfloat16)
    assert torch.equal(widened(numbers, torch.float32), numbers.float())


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20))
def test_rounding_takes_the_nearest_number_and_saturates(numbers: list[float]) -> None:
    rows = torch.tensor(numbers, dtype=torch.float32)
    rounded = rows.clone()
    round_to_format(rounded, FP8)
    candidates = np.unique(all_fp8().double().numpy())
    for given_number, got in zip(numbers, rounded.double().tolist(), strict=True):
        assert got in candidates
        wanted = max(-448.0, min(448.0, given_number))
        assert abs(got - wanted) == np.abs(candidates - wanted).min()
    # The appended rows are converted once more: nothing may change then.
    again = rounded.clone()
    round_to_format(again, FP8)
    assert torch.equal(again, rounded)
    assert torch.equal(rounded.to(FP8).float(), rounded)


@pytest.mark.parametrize("dtype", WIDER)
def test_ties_go_to_the_even_neighbour_in_every_format_of_the_model(dtype: torch.dtype) -> None:
    rows = torch.tensor([17.0, 19.0, -17.0, 2.0**-10, 3 * 2.0**-10], dtype=dtype)
    round_to_format(rows, FP8)
    assert rows.tolist() == [16.0, 20.0, -16.0, 0.0, 2.0**-8]


def test_nan_stays_and_infinity_becomes_the_largest_number() -> None:
    rows = torch.tensor([math.nan, math.inf, -math.inf, 1e30])
    round_to_format(rows, FP8)
    assert rows[0].isnan()
    assert rows[1:].tolist() == [448.0, -448.0, 448.0]


def test_a_view_is_rounded_in_place_and_the_same_format_left_alone() -> None:
    rows = torch.full((4, 2), 1.03)
    round_to_format(rows[1:3], FP8)
    assert rows[:, 0].tolist() == pytest.approx([1.03, 1.0, 1.0, 1.03])
    before = rows.clone()
    round_to_format(rows, torch.float32)
    assert torch.equal(rows, before)
