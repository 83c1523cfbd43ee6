"""Small facts of the GPU at hand."""

from __future__ import annotations

import numpy as np
import torch

from kernelflume.core.errors import UnavailableError
from kernelflume.cuda.exchange import STATUS, describe_failure


def architecture(device: torch.device) -> str:
    """Return nvcc's name of the device's architecture."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


class StatusWord:
    """The word that kernels report a failed wait in, and the host's copy of it."""

    def __init__(self, device: torch.device) -> None:
        self.host = torch.zeros(1, dtype=torch.int32).pin_memory()
        record = np.zeros(1, STATUS)
        record["host"] = self.host.data_ptr()  # pinned memory has one address for both
        self._device = torch.from_numpy(record.view(np.uint8)).to(device)

    @property
    def address(self) -> int:
        """Device address, for kernels."""
        return self._device.data_ptr()

    def check(self) -> None:
        """Raise if a wait failed.

        Raises:
            UnavailableError: one did.
        """
        failure = int(self.host[0])
        if failure:
            cause, node = describe_failure(failure)
            raise UnavailableError(f"a wait for a {cause.name.lower()} failed (node {node})")


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
