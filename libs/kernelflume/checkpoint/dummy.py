"""Weights that are not stored anywhere: drawn from a seed where they are needed, for benchmarks."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DummyWeights:
    """Stands for a ``WeightIndex`` where a model folder's weights are not to be read, or are not there."""

    seed: int
    """What the weights are drawn from; the same kind of device draws the same ones."""
    num_elements: int
    """Numbers in all tensors together."""

    @property
    def digest(self) -> bytes:
        """SHA-256 over the seed: models of two seeds are two models."""
        return hashlib.sha256(f"dummy weights of seed {self.seed}".encode()).digest()
