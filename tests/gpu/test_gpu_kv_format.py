"""Keys and values in FP8 on a GPU: how they are rounded, and every kernel that attends to them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.anode import GEOMETRY

from kernelflume.anode.kernels import choose_kernel
from kernelflume.anode.kvpool import HeldSequence, KvPool
from kernelflume.anode.selftest import TOLERANCE, check_kernel
from kernelflume.core.geometry import FP8, KvGeometry
from kernelflume.tensor.kv_format import round_to_format
from kernelflume.tensor.reference import dense_attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.timeout(500),
]

PAGE_TOKENS = 16


def geometry_of(head_dim: int, heads: tuple[int, int], dtype: str = "bfloat16") -> KvGeometry:
    return replace(
        GEOMETRY,
        head_dim=head_dim,
        num_query_heads=heads[0],
        num_kv_heads=heads[1],
        dtype=dtype,
        kv_dtype=FP8,
    )


def pool_of(geometry: KvGeometry, num_pages: int = 40) -> KvPool:
    return KvPool(
        geometry,
        page_tokens=PAGE_TOKENS,
        num_bytes=num_pages * PAGE_TOKENS * geometry.token_bytes,
        device=torch.device("cuda", 0),
    )


def test_the_device_path_rounds_as_torch_does() -> None:
    from kernelflume.wnode.gpu.kernels import rotate_keys

    generator = torch.Generator("cuda").manual_seed(1)
    rows, heads, dim = 64, 8, 128
    projected = torch.randn(rows, 2 * heads * dim, generator=generator, device="cuda") * 30
    projected[0, :4] = torch.tensor([1e30, -1e30, 449.0, -500.0])
    projected[1, heads * dim] = math.nan
    projected = projected.to(torch.bfloat16)
    angles = torch.randn(rows, dim // 2, generator=generator, device="cuda")
    own, exact = (torch.empty(rows, 2, heads, dim, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    stored = torch.empty(own.shape, dtype=torch.float8_e4m3fn, device="cuda")
    rotate_keys(projected, angles.cos(), angles.sin(), None, own, stored)
    rotate_keys(projected, angles.cos(), angles.sin(), None, exact, exact)
    round_to_format(exact, torch.float8_e4m3fn)
    torch.testing.assert_close(own, exact, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(stored.to(torch.bfloat16), exact, rtol=0, atol=0, equal_nan=True)
    assert own.isnan().sum() == 1
    # A CPU rounds to the same bits.
    on_cpu = torch.randn(4096).mul_(100).to(torch.bfloat16)
    on_gpu = on_cpu.cuda()
    round_to_format(on_cpu, torch.float8_e4m3fn)
    round_to_format(on_gpu, torch.float8_e4m3fn)
    assert torch.equal(on_gpu.cpu(), on_cpu)


@pytest.mark.parametrize("heads", [(32, 8), (9, 3), (8, 8)])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_prefill_attends_to_fp8(head_dim: int, heads: tuple[int, int]) -> None:
    pool = pool_of(geometry_of(head_dim, heads))
    check_kernel(choose_kernel("flashinfer", pool), pool)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("head_dim", [64, 96])
def test_torch_attends_to_fp8(head_dim: int, dtype: str) -> None:
    pool = pool_of(geometry_of(head_dim, (9, 3), dtype))
    check_kernel(choose_kernel("torch", pool), pool)


@pytest.mark.parametrize("tensor_cores", [True, False])
@pytest.mark.parametrize("heads", [(32, 8), (9, 3), (8, 8)])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_decode_attends_to_fp8(head_dim: int, heads: tuple[int, int], tensor_cores: bool) -> None:
    from kernelflume.anode.gpu.decode import PagedDecode
    from kernelflume.anode.gpu.device_kernels import LSE_UNIT, allocate_workspace
    from kernelflume.anode.gpu.device_pages import DevicePages
    from kernelflume.anode.gpu.page_table import PageTable

    geometry = geometry_of(head_dim, heads)
    pool = pool_of(geometry)
    assert isinstance(pool.storage, DevicePages)
    lengths = [1, 16, 40, 333]
    generator = torch.Generator("cuda").manual_seed(2)
    sequences, held = [HeldSequence() for _ in lengths], []
    for sequence, length in zip(sequences, lengths, strict=True):
        shape = (geometry.num_layers, length, 2, geometry.num_kv_heads, head_dim)
        rows = torch.randn(shape, generator=generator, device="cuda").to(torch.float8_e4m3fn)
        pool.store(pool.append(sequence, 0, length), rows)
        held.append(rows)
    decode = PagedDecode(
        pool.storage,
        num_rows=len(lengths),
        workspace=allocate_workspace(pool.device, geometry, len(lengths)),
        max_pages=pool.num_pages,
        tensor_cores=tensor_cores,
    )
    decode.plan(PageTable.of(sequences, PAGE_TOKENS))
    queries = torch.randn(
        len(lengths), geometry.num_query_heads, head_dim, generator=generator, device="cuda"
    ).to(torch.bfloat16)
    out, lse = torch.empty_like(queries), torch.empty(queries.shape[:2], device="cuda")
    layer = geometry.num_layers - 1
    decode.run(layer, queries, out, lse)
    for row, rows in enumerate(held):
        key, value = rows[layer].float().unbind(1)
        expected = dense_attention(queries[row : row + 1].float(), key, value)
        tolerance = TOLERANCE["bfloat16"]
        torch.testing.assert_close(out[row].double(), expected.out[0], rtol=0, atol=tolerance)
        torch.testing.assert_close(lse[row].double() * LSE_UNIT, expected.lse[0], rtol=0, atol=tolerance)


def test_appended_rows_come_back_bit_by_bit() -> None:
    pool = pool_of(geometry_of(64, (9, 3)))
    rows = torch.randn(3, 20, 2, 3, 64, device="cuda").to(torch.float8_e4m3fn)
    sequence = HeldSequence()
    pool.store(pool.append(sequence, 0, 20), rows)
    found = pool.storage.gather(1, torch.tensor(sequence.pages, device="cuda"))  # type: ignore[union-attr]
    key = found[:, 0].reshape(-1, 3, 64)[:20]
    assert np.array_equal(key.view(torch.uint8).cpu().numpy(), rows[1, :, 0].view(torch.uint8).cpu().numpy())
