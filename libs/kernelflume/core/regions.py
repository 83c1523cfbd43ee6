"""Memory that one node lets another write to, as they describe it to each other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryRegion:
    """One contiguous piece of registered memory."""

    address: int
    num_bytes: int
    kind: str = "DRAM"
    """DRAM or VRAM."""
    device: int = 0


@dataclass(frozen=True, slots=True)
class DeviceLanes:
    """One side's memory of the lanes that kernels of two GPUs exchange through, without a CPU in between."""

    max_rows: int
    """Most rows that one step may have in a lane."""
    query_first: str
    """``off``, ``paper`` or ``local``: when queries leave, and who attends to a row's own key."""
    lanes: tuple[tuple[MemoryRegion, ...], ...]
    """Of a weight node (partials, counters) a lane; of an attention node (queries, appends, counters)."""
