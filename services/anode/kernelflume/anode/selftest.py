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
"""Largest difference from the float64 oracle over the pool's own values, for queries of unit variance in this
format. In what format keys and values are makes none: each kernel widens them exactly."""

_NUM_ROWS = 3


def check_kernel(kernel: AttentionKernel, pool: KvPool) -> None:
    """Attend to random tokens in the pool itself and compare with the oracle; the pool is empty afterwards.

    Raises:
        UnavailableError: the kernel's results are wrong on this machine.
    """
    geometry, device = pool.geometry, pool.device
    num_tokens = min(pool.capacity_tokens, pool.page_tokens + 1)
    generator = torch.Generator().manual_seed(0)
    dtype, kv_dtype = getattr(torch, geometry.dtype), getattr(torch, geometry.kv_dtype)
    queries = torch.randn(_NUM_ROWS, geometry.num_query_heads, geometry.head_dim, generator=generator)
    queries = queries.to(device, dtype)
    sequence = HeldSequence()
    slots = pool.append(sequence, 0, num_tokens)
    shape = (geometry.num_layers, num_tokens, 2, geometry.num_kv_heads, geometry.head_dim)
    rows = torch.randn(shape, generator=generator).to(device, kv_dtype)
    pool.store(slots, rows)
    into = Partial(torch.empty_like(queries), torch.empty(_NUM_ROWS, geometry.num_query_heads, device=device))
    last = geometry.num_layers - 1
    kernel.plan(queries, [Share(_NUM_ROWS, sequence)]).run(last, into)
    key, value = rows[last].to(torch.float32).unbind(1)
    expected = dense_attention(queries.float(), key, value)
    pool.store(slots, torch.zeros_like(rows))
    pool.release(sequence)
    differences = torch.cat([(into.out - expected.out).flatten(), (into.lse - expected.lse).flatten()])
    error = differences.abs().max().item()
    # Written so that nan, which a maximum passes on, fails too.
    tolerance = TOLERANCE[geometry.dtype]
    if not error <= tolerance:
        raise UnavailableError(
            f"self-test: attention differs from the oracle by {error:g}, beyond {tolerance:g}"
        )
