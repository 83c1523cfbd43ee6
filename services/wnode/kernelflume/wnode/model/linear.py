"""One linear projection, in the storage that is fastest where it runs."""

from __future__ import annotations

import math
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - the name every PyTorch program uses
from torch import Tensor, nn

_HALF_EXPONENT: Final = 15
"""Packed weights are scaled so that the largest lies just below 2**15, half of float16's range."""

_TOLERANCE: Final = 2.0**-26
"""Largest error of a packed weight, as a share of the matrix's largest: a quarter of float32's own step."""


class PlainLinear(nn.Module):
    """``y = x @ weight.T + bias`` from the weights as they are."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Take over ``weight`` [out, in] and ``bias`` [out] of one dtype and device."""
        super().__init__()
        self.weight = weight.contiguous()
        self.bias = bias
        self.gain = 1.0

    def forward(self, rows: Tensor) -> Tensor:
        """Project ``rows`` [n, in] to [n, out]."""
        return F.linear(rows, self.weight, self.bias)


class PackedLinear(nn.Module):
    """``y = gain * (x @ weight.T) + bias`` from float16, for float32 rows on a CPU; exact for ``weight``.

    On a CPU a decode step is bound by reading weights. Weights that come from bfloat16 or float16 have no
    more than 11 significant bits, so float16 times a power of two stores them exactly, and FBGEMM multiplies
    float32 rows with such a matrix at float32 precision from half the bytes, already packed for its kernel.
    That power of two is ``gain``; the caller divides by it where that costs nothing.
    benchmarks/results/decoder-cpu.md has the figures.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, exponent: int) -> None:
        """Pack ``weight`` [out, in]; ``exponent`` comes from ``gain_exponent``."""
        super().__init__()
        self.gain = 2.0**exponent
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight * self.gain, bias)

    def forward(self, rows: Tensor) -> Tensor:
        """Project ``rows`` float32 [n, in] to [n, out]."""
        return torch.ops.quantized.linear_dynamic_fp16(rows, self.packed)  # type: ignore[no-any-return]


Linear = PlainLinear | PackedLinear


def make_linear(weight: Tensor, bias: Tensor | None = None, *, exponent: int | None) -> Linear:
    """Return the packed form where ``gain_exponent`` found one to be exact, else the plain one."""
    return PlainLinear(weight, bias) if exponent is None else PackedLinear(weight, bias, exponent)


def gain_exponent(*weights: Tensor) -> int | None:
    """Return the power of two under which ``weights`` fit float16 without loss, or None where they do not.

    Weights that share an input must share the exponent, because the caller folds it into that input.
    """
    if any(weight.device.type != "cpu" or weight.dtype != torch.float32 for weight in weights):
        return None
    if torch.backends.quantized.engine not in ("x86", "fbgemm"):
        return None
    largest = max(float(weight.abs().max()) for weight in weights)
    if not 0.0 < largest < math.inf:
        return None
    exponent = _HALF_EXPONENT - math.frexp(largest)[1]
    gain = 2.0**exponent
    for weight in weights:
        scaled = weight * gain
        if float(scaled.sub_(scaled.half()).abs_().max()) > _TOLERANCE * largest * gain:
            return None
    return exponent
