"""Proof that the node computes what it should, before anyone may send it a query."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernelflume.anode.kernels import Share
from kernelflume.anode.kvpool import HeldSequence
from kernelflume.core.errors import UnavailableError
from kernelflume.tensor.partials import Partial
from kernelflume.tensor.reference import dense_attention

if TYPE_CHECKING:
    from kernelflume.anode.kernels import AttentionKernel
    from kernelflume.anode.kvpool import KvPool

TOLERANCE = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""Largest difference from the float64 oracle, for inputs of unit variance."""

_NUM_ROWS = 3


def check_kernel(kernel: AttentionKernel, pool: KvPool) -> None:
    """Attend to random tokens in the pool itself and compare with the oracle; the pool is empty afterwards.

    Raises:
        UnavailableError: the kernel's results are wrong on this machine.
    """
    geometry = pool.geometry
    num_tokens = min(pool.capacity_tokens, pool.page_tokens + 1)
    generator = torch.Generator().manual_seed(0)
    dtype = getattr(torch, geometry.dtype)
    queries = torch.randn(
        _NUM_ROWS, geometry.num_query_heads, geometry.head_dim, generator=generator
    ).to(dtype)  # fmt: skip
    sequence = HeldSequence()
    pool.append(sequence, 0, num_tokens)
    views = pool.view(sequence.extents[0])
    last = geometry.num_layers - 1
    key, value = views[2 * last], views[2 * last + 1]
    key.copy_(torch.randn(key.shape, generator=generator))
    value.copy_(torch.randn(value.shape, generator=generator))
    into = Partial(torch.empty_like(queries), torch.empty(_NUM_ROWS, geometry.num_query_heads))
    kernel.plan(queries, [Share(_NUM_ROWS, (views,))]).run(last, into)
    expected = dense_attention(queries, key[0].transpose(0, 1), value[0].transpose(0, 1))
    key.zero_()
    value.zero_()
    pool.release(sequence)
    differences = torch.cat([(into.out - expected.out).flatten(), (into.lse - expected.lse).flatten()])
    error = differences.abs().max().item()
    # Written so that nan, which a maximum passes on, fails too.
    tolerance = max(TOLERANCE[geometry.dtype], TOLERANCE[geometry.kv_dtype])
    if not error <= tolerance:
        raise UnavailableError(
            f"self-test: attention differs from the oracle by {error:g}, beyond {tolerance:g}"
        )
