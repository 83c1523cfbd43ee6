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
