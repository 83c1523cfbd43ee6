"""Memory that is fit for registration: host memory page-aligned and faulted in, or device memory."""

from __future__ import annotations

import contextlib
import mmap
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from kernelflume.core.regions import MemoryRegion
    from kernelflume.transport.base import Transport

_MADV_POPULATE_WRITE = 23
"""Python's mmap module has no name for it."""


def allocate(num_bytes: int) -> np.ndarray:
    """Return [num_bytes] uint8 of zeroed memory whose pages are all present.

    The first pass over fresh pages runs at a tenth of the speed, so it is made here and not in a step: by the
    kernel, which zeroes them, so that they are written once and not twice.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, max(num_bytes, mmap.PAGESIZE), flags=flags)
    # Keys of one token lie far apart, one place a layer and head: huge pages spare as many TLB misses. Only
    # private memory gets them.
    with contextlib.suppress(OSError):  # a kernel built without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, np.uint8, num_bytes)
    try:
        memory.madvise(_MADV_POPULATE_WRITE)
    except OSError:  # a kernel before 5.14
        array.fill(0)
    return array


def allocate_on(device: torch.device, num_bytes: int) -> torch.Tensor:
    """Return [num_bytes] uint8 of zeroed memory on a device; host memory as ``allocate`` makes it."""
    if device.type == "cpu":
        return torch.from_numpy(allocate(num_bytes))
    memory = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    settle(device)  # a peer's write is in no stream, and must come after the zeros
    return memory


def register(transport: Transport, memory: torch.Tensor) -> MemoryRegion:
    """Register a contiguous tensor where it lies."""
    if memory.device.type == "cpu":
        return transport.register(memory.view(torch.uint8).numpy())
    num_bytes = memory.numel() * memory.element_size()
    return transport.register_device(memory.data_ptr(), num_bytes, memory.device.index)


def settle(device: torch.device) -> None:
    """Wait for what this thread enqueued on a device: before a peer is told, or memory is reused."""
    if device.type != "cpu":
        torch.cuda.current_stream(device).synchronize()
