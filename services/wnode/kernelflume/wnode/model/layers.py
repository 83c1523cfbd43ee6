"""The small operations between projections: normalisation and rotary embedding."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name every PyTorch program uses
from torch import Tensor


def rms_norm(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divide each row [..., d] by its root mean square and multiply by ``weight`` [d]; float32 inside."""
    return F.rms_norm(rows.float(), weight.shape, weight, eps).to(rows.dtype)


def rotation(positions: Tensor, inverse_frequencies: Tensor) -> Tensor:
    """Return the rotation of each row's dimension pairs: complex64 [n, 1, head_dim / 2].

    ``positions`` is int64 [n]; ``inverse_frequencies`` float32 [head_dim / 2].
    """
    angles = positions.to(torch.float32).unsqueeze(-1) * inverse_frequencies  # [n, head_dim / 2]
    return torch.polar(torch.ones_like(angles), angles).unsqueeze(1)


def rotate(heads: Tensor, turn: Tensor, out: Tensor | None = None) -> Tensor:
    """Turn each pair (2i, 2i + 1) of ``heads`` [n, H, D] by ``turn`` [n, 1, D / 2] complex64.

    ``out`` [n, H, D], possibly a strided view, receives the result where given.
    """
    pairs = torch.view_as_complex(heads.float().unflatten(-1, (-1, 2)))
    if out is not None and out.dtype == torch.float32:
        torch.mul(pairs, turn, out=torch.view_as_complex(out.unflatten(-1, (-1, 2))))
        return out
    turned = torch.view_as_real(pairs * turn).flatten(-2)
    if out is not None:
        return out.copy_(turned)
    return turned.to(heads.dtype)


def interleave_halves(weight: Tensor, num_heads: int) -> Tensor:
    """Reorder the rows of a query or key projection from half-split to interleaved rotary pairs.

    Checkpoints pair dimension i with i + D / 2; ``rotate`` wants pairs side by side, where a rotation is one
    complex product. Queries and keys are reordered alike, so their dot products are unchanged; nothing but
    the order of a head's dimensions in the KV pool differs. ``weight`` is [num_heads * D, ...].
    """
    halves = weight.unflatten(0, (num_heads, 2, -1))  # [num_heads, 2, D / 2, ...]
    return halves.transpose(1, 2).reshape(weight.shape).contiguous()
