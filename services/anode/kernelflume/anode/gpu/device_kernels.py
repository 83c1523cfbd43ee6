"""Attention over pages in device memory, for any number of rows a sequence.

It serves prefill chunks, and decode rows that no captured graph does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kernelflume.anode.gpu.page_table import PageTable
from kernelflume.core.errors import ConfigurationError
from kernelflume.cuda.requirements import flashinfer_limit, is_installed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.anode.gpu.device_pages import DevicePages
    from kernelflume.anode.kernels import AttentionKernel, Share
    from kernelflume.core.geometry import KvGeometry
    from kernelflume.tensor.partials import Partial

_LEAST_WORKSPACE_BYTES = 128 << 20
_BLOCKS_PER_PROCESSOR = 2
_PREFILL_TILE = 128
"""Most query rows, times the heads that share a KV head, of one block of FlashInfer's prefill kernel."""
LSE_UNIT = math.log(2.0)
"""FlashInfer's lse is to base 2."""


def choose_device_kernel(name: str, pages: DevicePages) -> AttentionKernel:
    """Return the kernel that a setting names; ``auto`` takes FlashInfer where it can.

    Raises:
        ConfigurationError: FlashInfer was asked for, and is missing or does not know the formats.
    """
    limit = flashinfer_limit(pages.geometry)
    installed = is_installed("flashinfer")
    if name == "flashinfer" and limit:
        raise ConfigurationError(f"kernel: flashinfer {limit}; set kernel=torch")
    if name == "flashinfer" and not installed:
        raise ConfigurationError(
            "kernel: flashinfer is not installed; install kernelflume[gpu], or set kernel=torch"
        )
    if name != "torch" and not limit and installed:
        return FlashInferKernel(pages)
    return TorchDeviceKernel(pages)


def allocate_workspace(device: torch.device, geometry: KvGeometry, max_rows: int) -> torch.Tensor:
    """Return FlashInfer's scratch memory, for kernels of one stream and ``max_rows`` decode rows."""
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return torch.zeros(workspace_bytes(geometry, max_rows, processors), dtype=torch.uint8, device=device)


def workspace_bytes(geometry: KvGeometry, max_rows: int, num_processors: int) -> int:
    """Return the scratch that FlashInfer's plans ask for at most: float32 partials of splits, and their lse.

    A captured decode is planned for as many tiles as its rows can have, split or not; a prefill is split only
    while it has fewer tiles than fill the GPU.
    """
    heads, group = geometry.num_query_heads, geometry.num_query_heads // geometry.num_kv_heads
    tile = next((size for size in (16, 64) if group <= size), _PREFILL_TILE)
    splits = _BLOCKS_PER_PROCESSOR * num_processors // geometry.num_kv_heads
    decode_tiles = max(splits, -(-max_rows * group // tile) + max_rows - 1)
    tile_row_bytes = heads * (geometry.head_dim + 1) * 4
    needed = max(decode_tiles * tile, (splits + 1) * _PREFILL_TILE) * tile_row_bytes
    return max(_LEAST_WORKSPACE_BYTES, needed + (1 << 20))


class FlashInferKernel:
    """FlashInfer's paged prefill without a mask: every token held is older than every row."""

    def __init__(self, pages: DevicePages, workspace: torch.Tensor | None = None) -> None:
        """Prepare for plans; ``workspace`` is shared with kernels whose layers run on the same stream."""
        import flashinfer  # noqa: PLC0415 - optional dependency, looked for by the caller

        self._pages = pages
        if workspace is None:
            workspace = allocate_workspace(pages.pages.device, pages.geometry, max_rows=1)
        self._workspace = workspace
        self._wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend="fa2")

    def plan(self, queries: torch.Tensor, shares: Sequence[Share]) -> FlashInferStep:
        """Prepare a step; see ``AttentionKernel.plan``."""
        geometry = self._pages.geometry
        table = PageTable.of([share.sequence for share in shares], self._pages.page_tokens)
        rows = np.concatenate(([0], np.cumsum([share.num_rows for share in shares]))).astype(np.int32)
        self._wrapper.plan(
            torch.from_numpy(rows),
            torch.from_numpy(table.indptr),
            torch.from_numpy(table.indices),
            torch.from_numpy(table.last_page_len),
            geometry.num_query_heads,
            geometry.num_kv_heads,
            geometry.head_dim,
            self._pages.page_tokens,
            causal=False,
            q_data_type=getattr(torch, geometry.dtype),
            kv_data_type=getattr(torch, geometry.kv_dtype),
        )
        return FlashInferStep(self._wrapper, self._pages, queries)

    def apart(self) -> FlashInferKernel:
        """Return one with a plan of its own; see ``AttentionKernel.apart``. May run beside the step loop."""
        return FlashInferKernel(self._pages, self._workspace)


class FlashInferStep:
    """A planned step; see ``StepAttention``. The kernel's next plan ends it."""

    def __init__(self, wrapper: Any, pages: DevicePages, queries: torch.Tensor) -> None:
        self._wrapper = wrapper
        self._pages = pages
        self._queries = queries

    def run(self, layer: int, into: Partial) -> None:
        """Attend one layer's queries."""
        self._wrapper.run(
            self._queries, self._pages.pages[layer], out=into.out, lse=into.lse, return_lse=True
        )
        into.lse.mul_(LSE_UNIT)


class TorchDeviceKernel:
    """Plain torch, one sequence after another: for formats that FlashInfer does not know, such as float32."""

    def __init__(self, pages: DevicePages) -> None:
        self._pages = pages

    def plan(self, queries: torch.Tensor, shares: Sequence[Share]) -> TorchDeviceStep:
        """Prepare a step; see ``AttentionKernel.plan``."""
        device = queries.device
        split = queries.split([share.num_rows for share in shares])
        parts = [
            (rows, torch.from_numpy(held.pages.numbers.astype(np.int64)).to(device), held.num_tokens)
            for rows, held in zip(split, (share.sequence for share in shares), strict=True)
        ]
        return TorchDeviceStep(self._pages, parts)

    def apart(self) -> TorchDeviceKernel:
        """Return this kernel, whose plans share nothing."""
        return self


class TorchDeviceStep:
    """A planned step; see ``StepAttention``."""

    def __init__(self, pages: DevicePages, parts: list[tuple[torch.Tensor, torch.Tensor, int]]) -> None:
        """Take the queries, page numbers and number of tokens of each sequence."""
        self._pages = pages
        self._parts = parts
        self._scale = pages.geometry.head_dim**-0.5

    def run(self, layer: int, into: Partial) -> None:
        """Attend one layer's queries."""
        row = 0
        for queries, pages, num_tokens in self._parts:
            end = row + len(queries)
            out, lse = self._attend(layer, queries, pages, num_tokens)
            into.out[row:end] = out
            into.lse[row:end] = lse
            row = end

    def _attend(
        self, layer: int, queries: torch.Tensor, pages: torch.Tensor, num_tokens: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not num_tokens:
            return torch.zeros_like(queries), queries.new_full(queries.shape[:2], -torch.inf)
        num_rows, num_query_heads, head_dim = queries.shape
        held = self._pages.gather(layer, pages)  # [pages, 2, page tokens, KV heads, dim]
        key, value = (
            held.transpose(0, 1).flatten(1, 2)[:, :num_tokens].float()
        )  # each [tokens, KV heads, dim]
        num_kv_heads = key.shape[1]
        heads = queries.float().view(num_rows, num_kv_heads, -1, head_dim).permute(1, 0, 2, 3).flatten(1, 2)
        scores = heads @ key.permute(1, 2, 0) * self._scale  # [KV heads, rows * group, tokens]
        lse = scores.logsumexp(-1)
        out = (scores - lse.unsqueeze(-1)).exp() @ value.transpose(0, 1)
        group = num_query_heads // num_kv_heads
        out = out.view(num_kv_heads, num_rows, group, head_dim).transpose(0, 1).reshape(queries.shape)
        return out, lse.view(num_kv_heads, num_rows, group).transpose(0, 1).reshape(num_rows, num_query_heads)
