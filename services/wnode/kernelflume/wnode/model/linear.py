"""One linear projection, in the storage that is fastest where it runs."""

from __future__ import annotations

import math
import warnings
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - the name every PyTorch program uses
from torch import Tensor

_HALF_EXPONENT: Final = 15
"""Packed weights are scaled so that the largest lies just below 2**15, half of float16's range."""

_TOLERANCE: Final = 2.0**-26
"""Largest error of a packed weight, as a share of the matrix's largest: a quarter of float32's own step."""


class Linear:
    """``y = gain * (x @ weight.T) + bias``; the caller divides by ``gain``, where that costs nothing.

    On a CPU a decode step is bound by reading weights. Weights that come from bfloat16 or float16 hold no
    more than 11 significant bits, so float16 times a power of two stores them exactly, and FBGEMM
    multiplies float32 rows with such a matrix at float32 precision from half the bytes, already packed
    for its kernel. That power of two is ``gain``. Weights that need more bits, other number formats and
    other devices take the plain path, with a gain of 1. benchmarks/results/decoder-cpu.md has the figures.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, gain_exponent: int | None = None) -> None:
        """Take over ``weight`` [out, in] and ``bias`` [out] of one dtype and device.

        ``gain_exponent`` comes from ``gain_exponent`` over all projections that share an input; None keeps
        the plain path.
        """
        self.gain: float = 1.0 if gain_exponent is None else 2.0**gain_exponent
        self._bias = bias
        self._packed: torch.ScriptObject | None = None
        self._weight: Tensor | None = None
        if gain_exponent is None:
            self._weight = weight.contiguous()
        else:
            scaled = weight.float() * self.gain
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*deprecated.*")
                self._packed = torch.ops.quantized.linear_prepack_fp16(scaled, bias)

    def __call__(self, rows: Tensor) -> Tensor:
        """Project ``rows`` [n, in] to [n, out]."""
        if self._packed is not None:
            projected: Tensor = torch.ops.quantized.linear_dynamic_fp16(rows, self._packed)
            return projected
        assert self._weight is not None  # noqa: S101 - one of the two is set in the constructor
        return F.linear(rows, self._weight, self._bias)


def gain_exponent(*weights: Tensor) -> int | None:
    """Return the power of two under which ``weights`` fit float16 without loss, or None where they do not.

    Weights that share an input must share the exponent, because the caller folds it into that input.
    """
    if not _has_packed_kernel() or any(w.device.type != "cpu" or w.dtype != torch.float32 for w in weights):
        return None
    largest = max(float(weight.abs().max()) for weight in weights)
    if not 0.0 < largest < math.inf:
        return None
    exponent = _HALF_EXPONENT - math.frexp(largest)[1]
    gain = 2.0**exponent
    for weight in weights:
        scaled = weight * gain
        error = float((scaled.half().float() - scaled).abs().max())
        if error > _TOLERANCE * largest * gain:
            return None
    return exponent


def _has_packed_kernel() -> bool:
    return torch.backends.quantized.engine in ("x86", "fbgemm")
