"""One random number for each (key, position): nothing is consumed, so a token depends on no other draw."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_GOLDEN = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as a signed number, as are the next two
_FIRST = -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
_SECOND = -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB
_FRACTION_BITS = 53


def uniform(keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return numbers in [0, 1), the same on every device.

    SplitMix64's stream of each key, at the place of the position: integer arithmetic that wraps around, then
    an exact product.

    Args:
        keys: [n] int64.
        positions: [n] int64, not negative.

    Returns:
        [n] float64, multiples of 2**-53.
    """
    bits = _mix(_mix(keys + _GOLDEN) + (positions + 1) * _GOLDEN)
    return _shift(bits, 64 - _FRACTION_BITS).double() * 2.0**-_FRACTION_BITS


def _mix(value: torch.Tensor) -> torch.Tensor:
    value = (value ^ _shift(value, 30)) * _FIRST
    value = (value ^ _shift(value, 27)) * _SECOND
    return value ^ _shift(value, 31)


def _shift(value: torch.Tensor, count: int) -> torch.Tensor:
    """Shift right without the sign, which torch's own shift keeps."""
    return (value >> count) & ((1 << (64 - count)) - 1)
