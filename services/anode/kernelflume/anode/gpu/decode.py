"""FlashInfer's paged decode with lse, one row a sequence, planned once a step and run in a captured graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernelflume.core.errors import ConfigurationError
from kernelflume.core.geometry import FP8

if TYPE_CHECKING:
    from kernelflume.anode.gpu.device_pages import DevicePages
    from kernelflume.anode.gpu.page_table import PageTable
    from kernelflume.core.geometry import KvGeometry


def uses_tensor_cores(geometry: KvGeometry) -> bool:
    """Tell which of FlashInfer's kernels to decode with.

    A group of query heads of a KV head shares its keys, so tensor cores pay from two on. FP8 halves the bytes
    and no arithmetic, so there the other kernel's scalar units may be what bounds it.
    """
    return geometry.num_query_heads > geometry.num_kv_heads or geometry.kv_dtype == FP8


class PagedDecode:
    """Attention of one query row a sequence, for a fixed number of rows: fit for a captured graph.

    Two of them alternate, so that one is planned while the other's graph still runs.
    """

    def __init__(
        self,
        pages: DevicePages,
        *,
        num_rows: int,
        workspace: torch.Tensor,
        max_pages: int,
        tensor_cores: bool | None = None,
    ) -> None:
        """Allocate index buffers.

        Args:
            pages: what is attended to.
            num_rows: rows of every step.
            workspace: [bytes] uint8 of zeros; may be shared within a stream.
            max_pages: most pages of a step.
            tensor_cores: which of FlashInfer's kernels; by default as ``uses_tensor_cores`` has it.

        Raises:
            ConfigurationError: FlashInfer is missing.
        """
        try:
            import flashinfer  # noqa: PLC0415 - optional dependency, named in the error
        except ImportError as error:
            raise ConfigurationError(
                "kernel: flashinfer is missing; install kernelflume[gpu], or use kernel=torch"
            ) from error
        device = pages.pages.device
        geometry = pages.geometry
        self._pages = pages
        self.num_rows = num_rows
        # A plan may take nothing from pageable memory: such a copy waits for the stream, that is, for the
        # step under way, and the next one is launched too late.
        self._indptr = torch.zeros(num_rows + 1, dtype=torch.int32).pin_memory()
        self._last_page_len = torch.ones(num_rows, dtype=torch.int32).pin_memory()
        self._pinned_indices = torch.zeros(max_pages, dtype=torch.int32).pin_memory()
        self._indices = torch.zeros(max_pages, dtype=torch.int32, device=device)
        self._wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace,
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=uses_tensor_cores(geometry) if tensor_cores is None else tensor_cores,
            paged_kv_indptr_buffer=torch.zeros(num_rows + 1, dtype=torch.int32, device=device),
            paged_kv_indices_buffer=self._indices,
            paged_kv_last_page_len_buffer=torch.ones(num_rows, dtype=torch.int32, device=device),
        )

    def plan(self, table: PageTable) -> None:
        """Prepare a step of ``num_rows`` sequences, in stream order; the step planned before must be done."""
        geometry = self._pages.geometry
        num_pages = len(table.indices)
        self._indptr.numpy()[:] = table.indptr
        self._last_page_len.numpy()[:] = table.last_page_len
        self._pinned_indices.numpy()[:num_pages] = table.indices
        on_device = self._indices[:num_pages]
        on_device.copy_(self._pinned_indices[:num_pages], non_blocking=True)
        self._wrapper.plan(
            self._indptr,
            on_device,
            self._last_page_len,
            geometry.num_query_heads,
            geometry.num_kv_heads,
            geometry.head_dim,
            self._pages.page_tokens,
            pos_encoding_mode="NONE",
            q_data_type=getattr(torch, geometry.dtype),
            kv_data_type=getattr(torch, geometry.kv_dtype),
            non_blocking=True,
        )

    def run(self, layer: int, queries: torch.Tensor, out: torch.Tensor, lse: torch.Tensor) -> None:
        """Attend ``queries`` [num_rows, heads, dim] to the planned pages of a layer; lse is to base 2."""
        self._wrapper.run(queries, self._pages.pages[layer], out=out, lse=lse, return_lse=True)
