"""The kernels and tables of a GPU's attention node that torch can also run on a CPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.anode import GEOMETRY, with_dtypes

from kernelflume.anode.block_index import Block
from kernelflume.anode.gpu.decode import uses_tensor_cores
from kernelflume.anode.gpu.device_kernels import TorchDeviceKernel, choose_device_kernel, workspace_bytes
from kernelflume.anode.gpu.device_pages import DevicePages
from kernelflume.anode.gpu.page_table import PageTable
from kernelflume.anode.kernels import Share
from kernelflume.anode.kvpool import HeldSequence, KvPool
from kernelflume.core.blocks import KEY_BYTES
from kernelflume.core.errors import ConfigurationError
from kernelflume.core.geometry import FP8, KvGeometry
from kernelflume.cuda.requirements import flashinfer_limit
from kernelflume.tensor.partials import Partial
from kernelflume.tensor.reference import dense_attention

PAGE_TOKENS = 4


def filled(
    lengths: list[int], geometry: KvGeometry = GEOMETRY
) -> tuple[DevicePages, list[HeldSequence], list[torch.Tensor]]:
    """Sequences of so many tokens in pages that are scattered, and their [layers, tokens, 2, heads, dim]."""
    book = KvPool(geometry, page_tokens=PAGE_TOKENS, num_bytes=64 * PAGE_TOKENS * geometry.token_bytes)
    pages = DevicePages(geometry, page_tokens=PAGE_TOKENS, num_pages=64, device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(3)
    sequences = [HeldSequence() for _ in lengths]
    written: list[list[torch.Tensor]] = [[] for _ in lengths]
    # A token of each in turn, so that no sequence's pages follow each other.
    for position in range(max(lengths)):
        for index, length in enumerate(lengths):
            if position < length:
                slots = book.append(sequences[index], position, 1)
                shape = (GEOMETRY.num_layers, 1, 2, GEOMETRY.num_kv_heads, GEOMETRY.head_dim)
                rows = torch.randn(shape, generator=generator).to(getattr(torch, geometry.kv_dtype))
                pages.store(slots, rows)
                written[index].append(rows.float())
    return pages, sequences, [torch.cat(rows, 1) if rows else torch.empty(0) for rows in written]


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", FP8])
def test_rows_over_scattered_pages_equal_the_oracle(kv_dtype: str) -> None:
    lengths, row_counts = [1, 9, 4, 30], [1, 3, 1, 2]
    pages, sequences, written = filled(lengths, with_dtypes("float32", kv_dtype))
    queries = torch.randn(sum(row_counts), GEOMETRY.num_query_heads, GEOMETRY.head_dim)
    step = TorchDeviceKernel(pages).plan(
        queries, [Share(rows, sequence) for rows, sequence in zip(row_counts, sequences, strict=True)]
    )
    for layer in range(GEOMETRY.num_layers):
        into = Partial(torch.full_like(queries, torch.nan), torch.full(queries.shape[:2], torch.nan))
        step.run(layer, into)
        row = 0
        for count, rows in zip(row_counts, written, strict=True):
            key, value = rows[layer].unbind(1)
            expected = dense_attention(queries[row : row + count], key, value)
            torch.testing.assert_close(into.out[row : row + count].double(), expected.out, rtol=0, atol=1e-5)
            torch.testing.assert_close(into.lse[row : row + count].double(), expected.lse, rtol=0, atol=1e-5)
            row += count


def test_a_sequence_of_which_nothing_is_held_counts_for_nothing() -> None:
    pages, _, _ = filled([1])
    queries = torch.randn(2, GEOMETRY.num_query_heads, GEOMETRY.head_dim)
    into = Partial(torch.full_like(queries, torch.nan), torch.full(queries.shape[:2], torch.nan))
    TorchDeviceKernel(pages).plan(queries, [Share(2, HeldSequence())]).run(0, into)
    assert not into.out.any()
    assert into.lse.eq(-torch.inf).all()


def test_float32_is_left_to_torch_and_refused_to_flashinfer() -> None:
    pages, _, _ = filled([1])
    assert isinstance(choose_device_kernel("auto", pages), TorchDeviceKernel)
    with pytest.raises(ConfigurationError, match="not in float32; set kernel=torch"):
        choose_device_kernel("flashinfer", pages)


def test_flashinfer_attends_to_fp8_and_refuses_other_mixtures() -> None:
    pages, _, _ = filled([1], with_dtypes("bfloat16", "float16"))
    assert isinstance(choose_device_kernel("auto", pages), TorchDeviceKernel)
    with pytest.raises(ConfigurationError, match="in bfloat16 or float8_e4m3fn, not in float16; set kernel"):
        choose_device_kernel("flashinfer", pages)
    # Of these heads it would compute nonsense, so it is not taken by itself either.
    pages, _, _ = filled([1], with_dtypes("bfloat16", FP8))
    assert isinstance(choose_device_kernel("auto", pages), TorchDeviceKernel)
    with pytest.raises(ConfigurationError, match="float8_e4m3fn with head_dim 64, 128, 256, not 16; set"):
        choose_device_kernel("flashinfer", pages)
    assert not flashinfer_limit(replace(with_dtypes("bfloat16", FP8), head_dim=128))
    assert not flashinfer_limit(with_dtypes("bfloat16"))


def test_fp8_is_decoded_on_tensor_cores_whatever_the_grouping() -> None:
    grouped = with_dtypes("bfloat16")
    alone = replace(grouped, num_kv_heads=grouped.num_query_heads)
    assert uses_tensor_cores(grouped)
    assert not uses_tensor_cores(alone)
    assert uses_tensor_cores(replace(alone, kv_dtype=FP8))


def test_a_page_table_names_every_page_and_the_last_one_s_tokens() -> None:
    _, sequences, _ = filled([1, 9, 8])
    table = PageTable.of(sequences, PAGE_TOKENS)
    assert table.indptr.tolist() == [0, 1, 4, 6]
    assert table.last_page_len.tolist() == [1, 1, 4]
    assert table.indices.tolist() == [page for sequence in sequences for page in sequence.pages]


def test_padding_adds_sequences_without_a_page() -> None:
    _, sequences, _ = filled([5])
    padded = PageTable.of(sequences, PAGE_TOKENS).padded(4)
    assert padded.indptr.tolist() == [0, 2, 2, 2, 2]
    assert padded.last_page_len.tolist() == [1, 0, 0, 0]
    assert padded.indptr.dtype == padded.last_page_len.dtype == np.int32


@pytest.mark.parametrize("rows", [1, 64, 256, 512, 1024])
def test_scratch_holds_what_a_captured_decode_may_be_planned_for(rows: int) -> None:
    geometry = replace(GEOMETRY, num_query_heads=32, num_kv_heads=8, head_dim=128)
    # FlashInfer 0.6.12 asked for 1,279 tiles of 16 rows of 32 heads at 1,024 decode rows of groups of 4.
    tiles = max(33, rows * 4 // 16 + rows - 1)
    assert workspace_bytes(geometry, rows, 132) > tiles * 16 * 32 * 128 * 4


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", FP8])
def test_a_shared_page_is_copied_within_the_pages_of_a_device(kv_dtype: str) -> None:
    geometry = with_dtypes("float32", kv_dtype)
    pool = KvPool(geometry, page_tokens=PAGE_TOKENS, num_bytes=8 * PAGE_TOKENS * geometry.token_bytes)
    pages = DevicePages(geometry, page_tokens=PAGE_TOKENS, num_pages=8, device=torch.device("cpu"))
    pool.storage = pages
    shape = (geometry.num_layers, 7, 2, geometry.num_kv_heads, geometry.head_dim)
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(4)).to(getattr(torch, kv_dtype))
    first, second = HeldSequence(), HeldSequence()
    pages.store(pool.append(first, 0, 6), rows[:, :6])
    blocks = [Block(b"a" * KEY_BYTES, 0, 4), Block(b"b" * KEY_BYTES, 4, 2)]
    pool.publish(first, blocks)
    assert pool.share(second, blocks) == 2
    slot = pool.append_one(second, 6)
    pages.store(np.array([slot]), rows[:, 6:])
    assert first.pages[0] == second.pages[0]
    assert first.pages[1] != second.pages[1]
    for sequence, num_tokens in ((first, 6), (second, 7)):
        for layer in range(geometry.num_layers):
            held = pages.gather(layer, torch.tensor(list(sequence.pages)))
            found = held.transpose(1, 2).flatten(0, 1)[:num_tokens]
            assert found.float().eq(rows[layer, :num_tokens].float()).all()
