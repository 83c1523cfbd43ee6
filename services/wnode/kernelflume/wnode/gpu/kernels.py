"""The small operations between projections, one Triton kernel each (paper section 5.2).

A decode step runs each of them once a layer on some ten rows, so what counts is that there are few. Rows are
in the model's dtype, sums in float32. Compile-time constants are in capitals, as Triton's users write them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

    from kernelflume.wnode.model.layers import RmsNorm


def rms_norm(hidden: Tensor, delta: Tensor | None, norm: RmsNorm) -> Tensor:
    """Return the normalised ``hidden`` [n, d]; ``delta`` [n, d], if given, is added to it in place before."""
    out = torch.empty_like(hidden)
    num_rows, width = hidden.shape
    block = triton.next_power_of_2(width)
    _rms_norm[(num_rows,)](
        hidden,
        hidden if delta is None else delta,
        norm.weight,
        norm.floor,
        out,
        width,
        HAS_DELTA=delta is not None,
        BLOCK=block,
        num_warps=min(max(block // 512, 1), 16),
    )
    return out


def rotate_queries(projected: Tensor, cos: Tensor, sin: Tensor, norm: RmsNorm | None, out: Tensor) -> None:
    """Turn ``projected`` [n, heads * dim] into ``out`` [n, heads, dim]; cos, sin: float32 [n, dim / 2]."""
    num_rows, num_heads, head_dim = out.shape
    _rotate[(num_rows, num_heads)](
        projected,
        cos,
        sin,
        projected if norm is None else norm.weight,
        projected if norm is None else norm.floor,
        out,
        out,
        projected.stride(0),
        out.stride(0),
        out.stride(0),
        num_heads,
        HALF=head_dim // 2,
        HAS_NORM=norm is not None,
        HAS_STORED=False,
        LIMIT=0.0,
        num_warps=1,
    )


def rotate_keys(
    projected: Tensor, cos: Tensor, sin: Tensor, norm: RmsNorm | None, own: Tensor, stored: Tensor
) -> None:
    """Turn the keys of ``projected`` [n, 2 * heads * dim] and copy its values.

    Args:
        projected: keys, then values, of every row.
        cos: float32 [n, dim / 2]
        sin: likewise.
        norm: of each key head, where the model has one.
        own: [n, 2, heads, dim] in the model's dtype, rounded to the pool's: what the row itself attends to.
        stored: [n, 2, heads, dim] in the pool's dtype; may be ``own``.
    """
    num_rows, _, num_heads, head_dim = own.shape
    _rotate[(num_rows, 2 * num_heads)](
        projected,
        cos,
        sin,
        projected if norm is None else norm.weight,
        projected if norm is None else norm.floor,
        own,
        stored,
        projected.stride(0),
        own.stride(0),
        stored.stride(0),
        num_heads,
        HALF=head_dim // 2,
        HAS_NORM=norm is not None,
        HAS_STORED=stored.data_ptr() != own.data_ptr(),
        LIMIT=torch.finfo(stored.dtype).max,
        num_warps=1,
    )


def gate(gate_up: Tensor) -> Tensor:
    """Return silu(g) * u of ``gate_up`` [n, 2 * width], g before u."""
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_rows, width), dtype=gate_up.dtype, device=gate_up.device)
    block = 1024
    _gate[(num_rows, triton.cdiv(width, block))](gate_up, out, width, BLOCK=block, num_warps=4)
    return out


@triton.jit
def _rms_norm(hidden, delta, weight, floor, out, width, HAS_DELTA: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    at = row * width + column
    values = tl.load(hidden + at, inside, 0.0)
    if HAS_DELTA:
        values = (values.to(tl.float32) + tl.load(delta + at, inside, 0.0).to(tl.float32)).to(values.dtype)
        tl.store(hidden + at, values, inside)
    wide = values.to(tl.float32)
    least = tl.load(floor)
    inverse = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) + least * least)
    scale = tl.load(weight + column, inside, 0.0)
    tl.store(out + at, (wide * inverse * scale).to(out.dtype.element_ty), inside)


@triton.jit
def _rotate(  # type: ignore[no-untyped-def]
    projected, cos, sin, weight, floor, own, stored, from_stride, own_stride, stored_stride, num_heads,
    HALF: tl.constexpr, HAS_NORM: tl.constexpr, HAS_STORED: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    pair = tl.arange(0, HALF)
    at = head * 2 * HALF + 2 * pair
    first = tl.load(projected + row * from_stride + at).to(tl.float32)
    second = tl.load(projected + row * from_stride + at + 1).to(tl.float32)
    if head < num_heads:  # values come behind the keys, and are not turned
        if HAS_NORM:
            least = tl.load(floor)
            inverse = 1.0 / tl.sqrt(tl.sum(first * first + second * second, 0) + least * least)
            first = (
                (first * inverse * tl.load(weight + 2 * pair)).to(projected.dtype.element_ty).to(tl.float32)
            )
            second = (
                (second * inverse * tl.load(weight + 2 * pair + 1))
                .to(projected.dtype.element_ty)
                .to(tl.float32)
            )
        c = tl.load(cos + row * HALF + pair)
        s = tl.load(sin + row * HALF + pair)
        turned = first * c - second * s
        second = first * s + second * c
        first = turned
    if HAS_STORED:
        # By way of the model's format, as where torch rounds; from float32 there is an instruction to FP8.
        first = first.to(own.dtype.element_ty).to(tl.float32)
        second = second.to(own.dtype.element_ty).to(tl.float32)
        first_stored = tl.clamp(first, -LIMIT, LIMIT, propagate_nan=tl.PropagateNan.ALL).to(
            stored.dtype.element_ty
        )
        second_stored = tl.clamp(second, -LIMIT, LIMIT, propagate_nan=tl.PropagateNan.ALL).to(
            stored.dtype.element_ty
        )
        tl.store(stored + row * stored_stride + at, first_stored)
        tl.store(stored + row * stored_stride + at + 1, second_stored)
        first, second = first_stored.to(tl.float32), second_stored.to(tl.float32)
    tl.store(own + row * own_stride + at, first.to(own.dtype.element_ty))
    tl.store(own + row * own_stride + at + 1, second.to(own.dtype.element_ty))


@triton.jit
def _gate(gate_up, out, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    g = tl.load(gate_up + row * 2 * width + column, inside, 0.0)
    u = tl.load(gate_up + row * 2 * width + width + column, inside, 0.0)
    wide = g.to(tl.float32)
    gated = (wide / (1.0 + tl.exp(-wide))).to(g.dtype)
    tl.store(
        out + row * width + column, (gated.to(tl.float32) * u.to(tl.float32)).to(out.dtype.element_ty), inside
    )
