"""Memory that one node lets another write to, as they describe it to each other."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class MemoryRegion:
    """One contiguous piece of registered memory."""

    address: int
    num_bytes: int
    kind: str = "DRAM"
    """DRAM or VRAM."""
    device: int = 0


class LanePath(StrEnum):
    """Who moves what travels between two captured graphs (docs/adr/0011-gpu-data-plane.md)."""

    DEVICE = "device"
    """Kernels of the graphs themselves."""
    HOST = "host"
    """The CPUs, at flags that the graphs set and wait for."""


@dataclass(frozen=True, slots=True)
class DeviceLanes:
    """One side's memory of the lanes that captured graphs of two GPUs exchange through."""

    max_rows: int
    """Most rows that one step may have in a lane."""
    query_first: str
    """``off``, ``paper`` or ``local``: when queries leave, and who attends to a row's own key."""
    lanes: tuple[tuple[MemoryRegion, ...], ...]
    """Of a weight node (partials, counters) a lane; of an attention node (queries, appends, counters). On the
    host path there are no counters."""
    path: str = LanePath.DEVICE
    """Which of ``LanePath`` they are for."""
