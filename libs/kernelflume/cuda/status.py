"""What kernels report: the first wait that failed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from kernelflume.cuda.exchange import STATUS, WaitKind


class Failure(NamedTuple):
    """A wait that failed."""

    kind: WaitKind
    lane: int
    """Of the weight node's lanes, for partials."""
    node: int
    """Its place in that lane's table, for partials."""


class StatusWord:
    """A word in device memory that waiting kernels look at, and the host's copy of it.

    Owned by the thread that launches. Once it is set, every later wait gives up at once, until ``reset``.
    """

    def __init__(self, device: torch.device) -> None:
        self._host = torch.zeros(1, dtype=torch.int32).pin_memory()
        record = np.zeros(1, STATUS)
        record["host"] = self._host.data_ptr()  # pinned memory has one address for both
        self._device = torch.from_numpy(record.view(np.uint8)).to(device)
        self._word = self._device[:4].view(torch.int32)
        self._stream = torch.cuda.Stream(device)  # to reach the word while the launching stream waits
        # Loads the kernel that an abort needs: its first launch could wait for the very step it is to end.
        self._word.fill_(0)

    @property
    def address(self) -> int:
        """Device address, for kernels."""
        return self._device.data_ptr()

    @property
    def failure(self) -> Failure | None:
        """The first wait that failed, or None."""
        status = int(self._host[0])
        return None if status == 0 else Failure(WaitKind(status & 0xFFFF), status >> 24, status >> 16 & 0xFF)

    def abort(self) -> None:
        """Make every wait under way, and all later ones, give up."""
        with torch.cuda.stream(self._stream):
            self._word.fill_(WaitKind.ABORTED)
        self._host[0] = WaitKind.ABORTED

    def reset(self) -> None:
        """Forget the failure, once nothing waits any more."""
        # An abort is written by a stream of its own: were it late, later waits would give up unseen.
        torch.cuda.current_stream().wait_stream(self._stream)
        self._word.zero_()
        torch.cuda.current_stream().synchronize()
        self._host.zero_()
