"""Posted attention on a GPU: steps of several lanes that take turns layer by layer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.anode import GEOMETRY

from kernelflume.anode.kernels import Share, choose_kernel
from kernelflume.anode.kvpool import HeldSequence, KvPool
from kernelflume.anode.selftest import TOLERANCE
from kernelflume.tensor.partials import Partial
from kernelflume.tensor.reference import dense_attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.timeout(500),
]

PAGE_TOKENS = 16
SHAPES = [(1, 300), (144, 144), (144, 20), (7, 1)]
"""(rows, tokens held) of each lane; two have the same number of rows."""


@pytest.mark.parametrize(("name", "dtype"), [("flashinfer", "bfloat16"), ("torch", "float32")])
def test_kernels_apart_keep_their_own_plans(name: str, dtype: str) -> None:
    geometry = replace(GEOMETRY, num_query_heads=8, num_kv_heads=2, head_dim=64, dtype=dtype, kv_dtype=dtype)
    device, generator = torch.device("cuda", 0), torch.Generator("cuda").manual_seed(1)
    number_format = getattr(torch, dtype)
    pool = KvPool(
        geometry, page_tokens=PAGE_TOKENS, num_bytes=64 * PAGE_TOKENS * geometry.token_bytes, device=device
    )
    kernel = choose_kernel(name, pool)
    lanes = []
    for num_rows, num_tokens in SHAPES:
        sequence = HeldSequence()
        held = torch.randn(
            (geometry.num_layers, num_tokens, 2, geometry.num_kv_heads, geometry.head_dim),
            generator=generator,
            device=device,
        ).to(number_format)
        pool.store(pool.append(sequence, 0, num_tokens), held)
        queries = torch.randn((num_rows, 8, 64), generator=generator, device=device).to(number_format)
        lanes.append((queries, held, kernel.apart().plan(queries, [Share(num_rows, sequence)])))
    for layer in range(geometry.num_layers):
        for queries, held, step in lanes:
            into = Partial(torch.empty_like(queries), torch.empty(queries.shape[:2], device=device))
            step.run(layer, into)
            key, value = held[layer].float().unbind(1)
            expected = dense_attention(queries.float(), key, value)
            for found, right in ((into.out, expected.out), (into.lse, expected.lse)):
                torch.testing.assert_close(found.double(), right, rtol=0, atol=TOLERANCE[dtype])
