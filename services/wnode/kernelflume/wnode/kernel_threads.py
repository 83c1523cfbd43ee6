"""How many threads the model's kernels use, by who else computes at the moment.

While attention nodes on the same machine attend, a kernel that spreads over every core waits for a thread
whose core is theirs: the projection of keys and values took three times as long as on one thread
(benchmarks/results/decode-cpu.md). So it runs on few threads then, and on all of them otherwise.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class KernelThreads:
    """Thread counts of one engine. Used by the engine's thread alone."""

    alone: int
    """While no attention node computes for this engine."""
    beside: int
    """While attention nodes do."""

    def apply(self) -> None:
        """Use the count for computing alone."""
        torch.set_num_threads(self.alone)

    @contextlib.contextmanager
    def beside_attention(self) -> Iterator[None]:
        """Use the other count inside, which costs a microsecond each way."""
        torch.set_num_threads(self.beside)
        try:
            yield
        finally:
            torch.set_num_threads(self.alone)
