"""Keys and values in the pool's format, where that is narrower than the model's.

They are rounded once, on the weight node, before anyone attends to them; see docs/adr/0015-kv-format.md.
"""

from __future__ import annotations

import torch


def round_to_format(rows: torch.Tensor, kv_dtype: torch.dtype) -> None:
    """Turn numbers into the nearest that ``kv_dtype`` has, in place; larger ones into its largest.

    Args:
        rows: of any shape, in the model's format.
        kv_dtype: the pool's format; nothing happens where it is the model's.
    """
    if rows.dtype is kv_dtype:
        return
    limit = torch.finfo(kv_dtype).max
    # Past the largest number a conversion gives nan, infinity, or saturates, as format and release have it.
    rows.copy_(rows.clamp(-limit, limit).to(kv_dtype))


def widened(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a copy of numbers in a wider format, which has all of them; of float8_e4m3fn nan is not kept.

    Args:
        numbers: of any shape, in a narrower format.
        dtype: float32, bfloat16 or float16.
    """
    if numbers.dtype is not torch.float8_e4m3fn:
        return numbers.to(dtype)
    # By their bits: shifted to where the wider format has its exponent and mantissa they stand for the number
    # divided by a power of two. torch's own conversion takes ten times as long on CPUs without AVX-512.
    integer, shift, mask, factor = _WIDENING[dtype]
    bits = numbers.view(torch.int8).to(integer)  # extends the sign, which masking leaves at the top
    return bits.bitwise_left_shift_(shift).bitwise_and_(mask).view(dtype).mul_(factor)


_WIDENING = {
    torch.float32: (torch.int32, 20, -(1 << 31) | 0x7F << 20, 2.0**120),
    torch.bfloat16: (torch.int16, 4, -(1 << 15) | 0x7F << 4, 2.0**120),
    torch.float16: (torch.int16, 7, -(1 << 15) | 0x7F << 7, 2.0**8),
}
"""Integer of the format's size, places from FP8's bits to its own, bits that count, the power of two."""
