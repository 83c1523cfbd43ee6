"""The small operations between projections: normalisation and rotary embedding.

All of it is also compiled as TorchScript, so it keeps to what that understands.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class RmsNorm(nn.Module):
    """Divides each row [..., d] by its root mean square and multiplies by a weight; float32 inside.

    Written ``x / hypot(|x|, sqrt(d eps)) * (weight sqrt(d))``, which is the same in four operations: in a
    step of one row the number of operations counts, not their size.
    """

    def __init__(self, weight: Tensor, eps: float, *, divisor: float = 1.0) -> None:
        """Take ``weight`` [d]; ``divisor`` undoes the gain of the projections that read the result."""
        super().__init__()
        size = weight.shape[0]
        self.weight = weight.float() * (math.sqrt(size) / divisor)
        self.floor = torch.tensor(math.sqrt(size * eps), dtype=torch.float32, device=weight.device)

    def forward(self, rows: Tensor) -> Tensor:
        """Normalise ``rows`` [..., d]."""
        wide = rows.float()
        length = torch.ops.aten.linalg_vector_norm(wide, 2.0, [-1], True)
        normed: Tensor = (wide / torch.hypot(length, self.floor)).mul_(self.weight)
        return normed.to(rows.dtype)


def rotation(positions: Tensor, inverse_frequencies: Tensor) -> Tensor:
    """Return the rotation of each row's dimension pairs: complex64 [n, 1, D / 2].

    ``positions`` is int64 [n]; ``inverse_frequencies`` float32 [D / 2].
    """
    angles = positions.to(torch.float32).unsqueeze(-1) * inverse_frequencies  # [n, D / 2]
    return torch.polar(torch.ones_like(angles), angles).unsqueeze(1)


def rotate(heads: Tensor, turn: Tensor) -> Tensor:
    """Turn each pair (2i, 2i + 1) of ``heads`` [n, H, D] by ``turn`` complex64 [n, 1, D / 2]."""
    return torch.view_as_real(_pairs(heads.float()) * turn).view(heads.size()).to(heads.dtype)


def rotate_into(heads: Tensor, turn: Tensor, out: Tensor) -> None:
    """Do the same into ``out`` [n, H, D], which may be a view whose last dimension is contiguous."""
    if out.dtype == torch.float32:
        torch.mul(_pairs(heads.float()), turn, out=_pairs(out))
    else:
        out.copy_(rotate(heads, turn))


def _pairs(heads: Tensor) -> Tensor:
    return torch.view_as_complex(heads.view(heads.size(0), heads.size(1), -1, 2))


def interleave_halves(weight: Tensor, num_heads: int) -> Tensor:
    """Reorder the rows of a query or key projection from half-split to interleaved rotary pairs.

    Checkpoints pair dimension i with i + D / 2; ``rotate`` wants pairs side by side, where a rotation is one
    complex product. Queries and keys are reordered alike, so their dot products are unchanged; nothing but
    the order of a head's dimensions in the KV pool differs. ``weight`` is [num_heads * D, ...].
    """
    halves: Tensor = weight.unflatten(0, (num_heads, 2, -1))  # [num_heads, 2, D / 2, ...]
    return halves.transpose(1, 2).reshape(weight.shape).contiguous()
