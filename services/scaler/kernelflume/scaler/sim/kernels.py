"""How long kernels take on one kind of GPU: measured tables where there are, a roofline elsewhere."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from kernelflume.scaler.sim.kernel_tables import AllReduceTable, AttentionTable, GemmTable, ScanLine

if TYPE_CHECKING:
    from pathlib import Path

    from kernelflume.scaler.sim.profiles import Hardware

MEMORY_SHARE = 0.79
"""Of the bandwidth that products bound by it reach: medians of tables: H100 0.80, A100 0.68, L40S 0.79."""
COMPUTE_SHARE = 0.82
"""Of the arithmetic that products bound by it reach: H100 0.82, A100 0.87, L40S 0.74."""
SCAN_SHARE = 0.77
"""Of the bandwidth that decode attention over 0.2 GB and more reaches, 8 KV heads: H100 and L40S 0.80, H200
0.74, A100 0.69."""
SCAN_START_S = 12e-6
"""Of decode attention over next to nothing: H100, H200 and L40S 12 us, A100 18 us."""
SMALL_KERNEL_S = 2.6e-6
"""Of a kernel with next to nothing to do: H100 2.6 us, A100 2.8, L40S 2.1 for the smallest products."""
ALL_REDUCE_START_S = 5e-6
"""Of an all-reduce of next to nothing: 4 us for 2 H100, a little more for 8."""


@lru_cache(maxsize=64)
def kernels_of(hardware: Hardware, tables: Path | None, weight_dtype_bytes: float) -> Kernels:
    """Return the kernels of a kind of GPU; the tables are read once, as they do not change."""
    return Kernels(hardware, tables=tables, weight_dtype_bytes=weight_dtype_bytes)


class Kernels:
    """Kernel times of one kind of GPU and one format of weights."""

    def __init__(self, hardware: Hardware, *, tables: Path | None, weight_dtype_bytes: float) -> None:
        """Read the tables that the hardware names.

        Args:
            hardware: the GPU.
            tables: their folder; None counts a roofline only.
            weight_dtype_bytes: of a weight; at 1 the FP8 arithmetic counts where there is any.

        Raises:
            ConfigurationError: a table cannot be read.
        """
        self._hardware = hardware
        self._is_fp8 = weight_dtype_bytes <= 1
        self._weight_bytes = weight_dtype_bytes
        self._gemm: GemmTable | None = None
        self._attention: AttentionTable | None = None
        self._all_reduce: AllReduceTable | None = None
        if tables is not None and hardware.gemm_table:
            dtype = "fp8" if self._is_fp8 and hardware.fp8_tflops else "bfloat16"
            self._gemm = GemmTable(tables / hardware.gemm_table, dtype, self._product_roofline_s)
        if tables is not None and hardware.attention_table:
            self._attention = AttentionTable(tables / hardware.attention_table)
        if tables is not None and hardware.all_reduce_table:
            self._all_reduce = AllReduceTable(tables / hardware.all_reduce_table)

    @property
    def measured(self) -> dict[str, bool]:
        """Which kernels are measured."""
        return {
            "products": self._gemm is not None,
            "attention": self._attention is not None,
            "all-reduce": self._all_reduce is not None,
        }

    def product_s(self, m: float, n: float, k: float) -> float:
        """Return the seconds of an m x k by k x n product, k x n being weights."""
        if self._gemm is not None:
            return self._gemm.seconds(m, n, k)
        hardware = self._hardware
        memory_s = self._product_bytes(m, n, k) / (hardware.memory_gb_per_s * 1e9 * MEMORY_SHARE)
        return max(memory_s, self._compute_s(m, n, k) / COMPUTE_SHARE, SMALL_KERNEL_S)

    def scan(self, rows: float, query_heads: int, kv_heads: int, head_dim: int) -> ScanLine:
        """Return the line of decode attention over the bytes read, one layer."""
        line = None
        if self._attention is not None:
            line = self._attention.line(rows, query_heads, kv_heads, head_dim)
        return line or ScanLine(SCAN_START_S, self._hardware.memory_gb_per_s * 1e9 * SCAN_SHARE)

    def all_reduce_s(self, num_gpus: int, num_bytes: float) -> float:
        """Return the seconds of an all-reduce within a machine: measured, else start and ring."""
        if num_gpus <= 1:
            return 0.0
        measured = self._all_reduce.seconds(num_gpus, num_bytes) if self._all_reduce is not None else None
        return measured or ALL_REDUCE_START_S + self.ring_s(num_gpus, num_bytes, "intra")

    def ring_s(self, num_gpus: int, num_bytes: float, link: str) -> float:
        """Return the seconds that the bytes of an all-reduce take on a link, ``intra`` or ``inter``."""
        share = 2 * (num_gpus - 1) / num_gpus
        return share * num_bytes / self._hardware.link_bytes_per_s(link)

    def _product_bytes(self, m: float, n: float, k: float) -> float:
        return self._weight_bytes * n * k + 2 * (m * k + m * n)

    def _compute_s(self, m: float, n: float, k: float) -> float:
        tflops = self._hardware.bf16_tflops
        if self._is_fp8 and self._hardware.fp8_tflops:
            tflops = self._hardware.fp8_tflops
        return 2 * m * n * k / (tflops * 1e12)

    def _product_roofline_s(self, m: float, n: float, k: float) -> float:
        memory_s = self._product_bytes(m, n, k) / (self._hardware.memory_gb_per_s * 1e9)
        return max(memory_s, self._compute_s(m, n, k))
