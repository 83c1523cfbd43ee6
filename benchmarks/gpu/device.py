"""Small facts of the GPU at hand."""

from __future__ import annotations

import torch


def architecture(device: torch.device) -> str:
    """Return nvcc's name of the device's architecture."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def mapped_status() -> torch.Tensor:
    """Return a status word that kernels and host both reach: pinned memory has one address for both."""
    return torch.zeros(16, dtype=torch.int32).pin_memory()


def copy_bandwidth(device: torch.device, num_bytes: int = 4 << 30) -> float:
    """Measure a device copy, counting bytes read and written, in bytes a second."""
    source = torch.empty(num_bytes, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    times = []
    for _ in range(7):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return 2 * num_bytes / (sorted(times)[3] * 1e-3)
