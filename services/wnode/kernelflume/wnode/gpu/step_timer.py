"""How long a step's graph ran, by the device's own clock."""

from __future__ import annotations

import torch


class StepTimer:
    """Two events around a graph. They are read once the step is done, so nothing waits for them."""

    def __init__(self) -> None:
        self._began = torch.cuda.Event(enable_timing=True)
        self._ended = torch.cuda.Event(enable_timing=True)

    def begin(self) -> None:
        """Note where the graph begins on the current stream."""
        self._began.record()

    def end(self) -> None:
        """Note where it ends."""
        self._ended.record()

    @property
    def seconds(self) -> float:
        """Seconds between both, which must be done."""
        return float(self._began.elapsed_time(self._ended)) * 1e-3
