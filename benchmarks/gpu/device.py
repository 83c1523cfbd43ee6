"""Small facts of the GPU at hand."""

from __future__ import annotations

import torch


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
    return 2e3 * num_bytes / float(sorted(times)[3])
