from __future__ import annotations

import pytest
import torch

from kernelflume.wnode.model.linear import PackedLinear, PlainLinear, gain_exponent, make_linear


def bfloat16_weight(rows: int, columns: int, *, scale: float = 0.05) -> torch.Tensor:
    values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)) * scale
    return values.to(torch.bfloat16).float()


@pytest.mark.parametrize("num_rows", [1, 2, 7, 33, 130])
@pytest.mark.parametrize(("outputs", "inputs"), [(17, 24), (64, 576), (1000, 48)])
def test_packed_and_plain_differ_by_rounding_only(num_rows: int, outputs: int, inputs: int) -> None:
    weight = bfloat16_weight(outputs, inputs)
    bias = torch.randn(outputs)
    rows = torch.randn(num_rows, inputs)
    exponent = gain_exponent(weight)
    assert exponent is not None

    packed = PackedLinear(weight, bias, exponent)
    exact = rows.double() @ weight.double().T + bias.double()

    torch.testing.assert_close(packed(rows / packed.gain).double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [1e-6, 0.02, 30.0, 1e6])
def test_bfloat16_of_any_size_is_packed(scale: float) -> None:
    exponent = gain_exponent(bfloat16_weight(64, 64, scale=scale))

    assert exponent is not None
    largest = bfloat16_weight(64, 64, scale=scale).abs().max() * 2.0**exponent
    assert 2**14 <= largest < 2**15


def test_float16_is_packed() -> None:
    assert gain_exponent(bfloat16_weight(8, 8).half().float()) is not None


@pytest.mark.parametrize(
    "weight",
    [
        torch.randn(16, 16),
        torch.zeros(4, 4),
        torch.full((4, 4), float("inf")),
        torch.full((4, 4), float("nan")),
        bfloat16_weight(8, 8).bfloat16(),
    ],
    ids=["float32", "zero", "infinite", "nan", "wrong dtype"],
)
def test_what_would_lose_bits_stays_plain(weight: torch.Tensor) -> None:
    exponent = gain_exponent(weight)

    assert exponent is None
    assert isinstance(make_linear(weight, exponent=exponent), PlainLinear)


def test_weights_that_share_an_input_share_the_exponent() -> None:
    small, large = bfloat16_weight(8, 8, scale=0.01), bfloat16_weight(8, 8, scale=4.0)

    assert gain_exponent(small, large) == gain_exponent(large)
    assert gain_exponent(small, torch.randn(8, 8)) is None
