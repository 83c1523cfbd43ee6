"""FlashInfer's paged decode with lse, planned once a step. The only module that imports flashinfer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    import numpy as np

    from kernelflume.anode.gpu.pool import DevicePool

_WORKSPACE_BYTES = 256 << 20
LSE_UNIT = math.log(2.0)
"""FlashInfer's lse is to base 2."""


class PagedDecode:
    """Attention of one query row a sequence, for a fixed number of rows: fit for a captured graph.

    Two of them alternate, so that one is planned while the other's graph still runs.
    """

    def __init__(self, pool: DevicePool, *, num_rows: int, workspace: torch.Tensor, max_pages: int) -> None:
        """Allocate index buffers; ``workspace`` [bytes] uint8 of zeros may be shared by kernels of one stream.

        Raises:
            ConfigurationError: FlashInfer is missing.
        """
        try:
            import flashinfer  # noqa: PLC0415 - optional dependency, named in the error
        except ImportError as error:
            raise ConfigurationError(
                "kernel: flashinfer is missing; install kernelflume[gpu], or use kernel=torch"
            ) from error
        device = pool.pages.device
        geometry = pool.geometry
        self._pool = pool
        self.num_rows = num_rows
        # A plan may take nothing from pageable memory: such a copy waits for the stream, that is, for the step
        # under way, and the next one is launched too late.
        self._indptr = torch.zeros(num_rows + 1, dtype=torch.int32).pin_memory()
        self._last_page_len = torch.ones(num_rows, dtype=torch.int32).pin_memory()
        self._pinned_indices = torch.zeros(max_pages, dtype=torch.int32).pin_memory()
        self._indices = torch.zeros(max_pages, dtype=torch.int32, device=device)
        # A group of query heads of a KV head shares its keys: tensor cores pay from two on.
        self._wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace,
            "NHD",
            use_cuda_graph=True,
            use_tensor_cores=geometry.num_query_heads > geometry.num_kv_heads,
            paged_kv_indptr_buffer=torch.zeros(num_rows + 1, dtype=torch.int32, device=device),
            paged_kv_indices_buffer=self._indices,
            paged_kv_last_page_len_buffer=torch.ones(num_rows, dtype=torch.int32, device=device),
        )

    def plan(self, indptr: np.ndarray, indices: np.ndarray, last_page_len: np.ndarray) -> None:
        """Prepare a step, in the order of the current stream; the step planned before must be done.

        Args:
            indptr: int32 [num_rows + 1], where each row's pages begin.
            indices: int32 [pages in all]
            last_page_len: int32 [num_rows], tokens in each row's last page, at least 1.
        """
        geometry = self._pool.geometry
        self._indptr.numpy()[:] = indptr
        self._last_page_len.numpy()[:] = last_page_len
        self._pinned_indices.numpy()[: len(indices)] = indices
        on_device = self._indices[: len(indices)]
        on_device.copy_(self._pinned_indices[: len(indices)], non_blocking=True)
        self._wrapper.plan(
            self._indptr,
            on_device,
            self._last_page_len,
            geometry.num_query_heads,
            geometry.num_kv_heads,
            geometry.head_dim,
            self._pool.page_tokens,
            pos_encoding_mode="NONE",
            q_data_type=getattr(torch, geometry.dtype),
            kv_data_type=getattr(torch, geometry.kv_dtype),
            non_blocking=True,
        )

    def run(self, layer: int, queries: torch.Tensor, out: torch.Tensor, lse: torch.Tensor) -> None:
        """Attend ``queries`` [num_rows, heads, dim] to the planned pages of a layer; lse is to base 2."""
        self._wrapper.run(queries, self._pool.pages[layer], out=out, lse=lse, return_lse=True)


def allocate_workspace(device: torch.device) -> torch.Tensor:
    """Return FlashInfer's scratch memory."""
    return torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
