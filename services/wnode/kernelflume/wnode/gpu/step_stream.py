"""The stream that steps run on: what is enqueued there happens in order, some time after it was enqueued."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class Mark(Protocol):
    """A place in the stream."""

    def query(self) -> bool:
        """Tell whether everything before it is done."""
        ...

    def synchronize(self) -> None:
        """Wait until it is."""
        ...


class StepStream(Protocol):
    """Owned by the step loop's thread."""

    def current(self) -> AbstractContextManager[object]:
        """Make it this thread's current stream."""
        ...

    def enqueue(self, work: Callable[[], object]) -> None:
        """Have kernels and copies done in stream order; ``work`` must not look at what they compute."""
        ...

    def mark(self) -> Mark:
        """Mark the end of what was enqueued so far."""
        ...

    def pinned(self, memory: torch.Tensor) -> torch.Tensor:
        """Return host memory with these numbers, which copies leave or reach without holding up the host."""
        ...


class CudaStepStream:
    """See ``StepStream``."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        """Take a stream, or None for the one that is current anyway."""
        self._stream = stream

    def current(self) -> AbstractContextManager[object]:
        """Make it current."""
        context: AbstractContextManager[object] = torch.cuda.stream(self._stream)
        return context

    def enqueue(self, work: Callable[[], object]) -> None:
        """Call it: launches return before anything is computed."""
        work()

    def mark(self) -> torch.cuda.Event:
        """Record an event."""
        event = torch.cuda.Event()
        event.record()
        return event

    def pinned(self, memory: torch.Tensor) -> torch.Tensor:
        """Copy it to pinned memory."""
        return memory.pin_memory()
