from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from tests.anode import GEOMETRY, with_dtypes

from kernelflume.anode import kernels
from kernelflume.anode.host_pages import HostPages
from kernelflume.anode.kernels import AttentionKernel, Share, TorchKernel, TorchStep, choose_kernel
from kernelflume.anode.kvpool import KvPool
from kernelflume.anode.selftest import check_kernel
from kernelflume.core.errors import ConfigurationError, UnavailableError
from kernelflume.core.geometry import FP8
from kernelflume.tensor.partials import Partial
from kernelflume.tensor.reference import dense_attention

if TYPE_CHECKING:
    from kernelflume.core.geometry import KvGeometry

NUM_QUERY_HEADS, NUM_KV_HEADS, HEAD_DIM, NUM_LAYERS = 6, 2, 16, 2


def small_pool(geometry: KvGeometry = GEOMETRY) -> KvPool:
    """Four pages of eight tokens."""
    return KvPool(geometry, page_tokens=8, num_bytes=4 * 8 * geometry.token_bytes)


def views(key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Keys and values of [num_layers, num_kv_heads, num_tokens, head_dim] as the pool gives them."""
    pairs = zip(key.unbind(0), value.unbind(0), strict=True)
    return tuple(part.unsqueeze(0) for pair in pairs for part in pair)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)]
)
def test_ragged_and_scattered_rows_equal_the_oracle(dtype: torch.dtype, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(0)
    # Rows of each sequence, and the lengths of the extents that hold its tokens.
    sequences = [(1, [1]), (1, [700]), (5, [64, 1, 40]), (40, [33]), (2, []), (1, [3, 600])]
    # Short extents are attended together, up to some thousand tokens, and long ones alone.
    sequences += [(1, [16] * 140), (3, [9, 500, 16, 16, 384, 383, 1])]
    num_rows = sum(rows for rows, _ in sequences)
    queries = torch.empty(num_rows, NUM_QUERY_HEADS, HEAD_DIM, dtype=dtype)
    held_views, held = [], []
    for _, lengths in sequences:
        shape = (2, NUM_LAYERS, NUM_KV_HEADS, sum(lengths), HEAD_DIM)
        key, value = torch.randn(shape, generator=generator).to(dtype)
        extents = zip(key.split(lengths, dim=2), value.split(lengths, dim=2), strict=True)
        held_views.append([views(*extent) for extent in extents if lengths])
        held.append((key, value))
    step = TorchStep(queries, [rows for rows, _ in sequences], held_views, NUM_KV_HEADS)
    for layer in range(NUM_LAYERS):
        queries.copy_(torch.randn(queries.shape, generator=generator))
        into = Partial(torch.full_like(queries, torch.nan), torch.full(queries.shape[:2], torch.nan))
        step.run(layer, into)
        row = 0
        for (rows, _), (key, value) in zip(sequences, held, strict=True):
            part = slice(row, row + rows)
            expected = dense_attention(
                queries[part], key[layer].transpose(0, 1), value[layer].transpose(0, 1)
            )  # fmt: skip
            torch.testing.assert_close(into.out[part].double(), expected.out, rtol=0, atol=tolerance)
            torch.testing.assert_close(into.lse[part].double(), expected.lse, rtol=0, atol=tolerance)
            row += rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("num_rows", [1, 5])
def test_fp8_is_widened_exactly_piece_by_piece(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, num_rows: int
) -> None:
    monkeypatch.setattr(kernels, "_WIDENED_NUMBERS", 7 * NUM_KV_HEADS * HEAD_DIM)
    generator = torch.Generator().manual_seed(2)
    queries = torch.randn(num_rows, NUM_QUERY_HEADS, HEAD_DIM, generator=generator).to(dtype)
    lengths = [3, 7, 30]
    shape = (2, NUM_LAYERS, NUM_KV_HEADS, sum(lengths), HEAD_DIM)
    key, value = (torch.randn(shape, generator=generator) * 3).to(torch.float8_e4m3fn)
    extents = zip(key.split(lengths, dim=2), value.split(lengths, dim=2), strict=True)
    step = TorchStep(queries, [num_rows], [[views(*extent) for extent in extents]], NUM_KV_HEADS)
    into = Partial(torch.full_like(queries, torch.nan), torch.full(queries.shape[:2], torch.nan))
    step.run(1, into)
    expected = dense_attention(queries, key[1].transpose(0, 1).float(), value[1].transpose(0, 1).float())
    tolerance = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-1}[dtype]
    torch.testing.assert_close(into.out.double(), expected.out, rtol=0, atol=tolerance)
    torch.testing.assert_close(into.lse.double(), expected.lse, rtol=0, atol=tolerance)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 6])
def test_any_grouping_of_heads(num_kv_heads: int) -> None:
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(3, NUM_QUERY_HEADS, HEAD_DIM, generator=generator)
    key, value = torch.randn(2, 1, num_kv_heads, 9, HEAD_DIM, generator=generator)
    into = Partial(torch.empty_like(queries), torch.empty(queries.shape[:2]))
    TorchStep(queries, [3], [[views(key, value)]], num_kv_heads).run(0, into)
    expected = dense_attention(queries, key[0].transpose(0, 1), value[0].transpose(0, 1))
    torch.testing.assert_close(into.out.double(), expected.out, rtol=0, atol=1e-5)
    torch.testing.assert_close(into.lse.double(), expected.lse, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["auto", "torch"])
def test_a_kernel_that_runs_here_is_chosen(name: str) -> None:
    assert isinstance(choose_kernel(name, small_pool()), TorchKernel)


def test_flashinfer_is_refused_with_what_it_needs() -> None:
    with pytest.raises(ConfigurationError, match="GPU memory"):
        choose_kernel("flashinfer", small_pool())


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'fast' is not one of auto, torch, flashinfer"):
        choose_kernel("fast", small_pool())


@pytest.mark.parametrize(
    "dtypes",
    [("float32", "float32"), ("bfloat16", "bfloat16"), ("float32", "float16"), ("float16", FP8)],
)
def test_the_self_test_passes_and_leaves_the_pool_empty(dtypes: tuple[str, str]) -> None:
    geometry = with_dtypes(*dtypes)
    pool = small_pool(geometry)
    check_kernel(choose_kernel("torch", pool), pool)
    assert pool.num_tokens == 0
    assert pool.num_free_pages == 4
    assert isinstance(pool.storage, HostPages)
    assert not pool.storage.bits.any()


@pytest.mark.parametrize("wrong", [1.01, float("nan")])
def test_the_self_test_finds_a_kernel_that_computes_something_else(wrong: float) -> None:
    class WrongStep:
        def __init__(self, queries: torch.Tensor, shares: list[Share]) -> None:
            self.right = choose_kernel("torch", pool).plan(queries, shares)

        def run(self, layer: int, into: Partial) -> None:
            self.right.run(layer, into)
            into.lse.mul_(wrong)

    class WrongKernel(AttentionKernel):
        def plan(self, queries: torch.Tensor, shares: object) -> WrongStep:
            assert isinstance(shares, list)
            return WrongStep(queries, shares)

        def apart(self) -> WrongKernel:
            return self

    pool = small_pool()
    with pytest.raises(UnavailableError, match="self-test: attention differs"):
        check_kernel(WrongKernel(), pool)


def test_a_pool_too_small_for_one_page_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="hold no page of 8 tokens"):
        KvPool(GEOMETRY, page_tokens=8, num_bytes=8 * GEOMETRY.token_bytes - 1)
