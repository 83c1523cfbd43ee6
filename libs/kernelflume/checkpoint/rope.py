"""Rotary position embedding parameters: which frequencies a model's queries and keys turn by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kernelflume.core.errors import ConfigurationError

_DEFAULT_THETA = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeParameters:
    """Base frequency and the scaling that stretches a model to longer contexts."""

    theta: float = _DEFAULT_THETA
    kind: str = "default"
    """``default``, ``linear`` or ``llama3``."""
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    """llama3: wavelengths above original context / this are stretched in full."""
    high_frequency_factor: float = 4.0
    """llama3: wavelengths below original context / this stay as they are."""
    original_max_position_embeddings: int = 8192
    """llama3: context length before the stretch."""

    def __post_init__(self) -> None:
        if self.theta <= 0 or self.factor <= 0:
            raise ConfigurationError(
                f"model: rope theta {self.theta} and factor {self.factor} must be positive"
            )
        if self.kind == "llama3" and self.high_frequency_factor <= self.low_frequency_factor:
            raise ConfigurationError(
                f"model: rope high_freq_factor {self.high_frequency_factor} must exceed "
                f"low_freq_factor {self.low_frequency_factor}"
            )

    def inverse_frequencies(self, head_dim: int) -> npt.NDArray[np.float32]:
        """Return the angle that each pair of dimensions turns by a position: float32 [head_dim / 2]."""
        exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
        frequencies = (np.float32(1.0) / np.float32(self.theta) ** exponents).astype(np.float32)
        if self.kind == "linear":
            frequencies = frequencies / np.float32(self.factor)
        elif self.kind == "llama3":
            frequencies = self._llama3(frequencies)
        return frequencies.astype(np.float32)

    def _llama3(self, frequencies: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        context = self.original_max_position_embeddings
        wavelengths = 2 * math.pi / frequencies
        blend = (context / wavelengths - self.low_frequency_factor) / (
            self.high_frequency_factor - self.low_frequency_factor
        )
        # blend <= 0: a wave so long that the old context never saw a full turn; >= 1: short, kept.
        kept = np.clip(blend, 0.0, 1.0)
        return ((1 - kept) * frequencies / self.factor + kept * frequencies).astype(np.float32)

    @classmethod
    def from_config(cls, fields: dict[str, Any], *, max_position_embeddings: int) -> RopeParameters:
        """Read ``rope_parameters`` (transformers 5) or ``rope_theta`` with ``rope_scaling`` (before it).

        Raises:
            ConfigurationError: the scaling is of a kind that is not supported.
        """
        scaling = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
        theta = float(scaling.get("rope_theta") or fields.get("rope_theta") or _DEFAULT_THETA)
        partial = scaling.get("partial_rotary_factor", fields.get("partial_rotary_factor", 1.0))
        if partial not in (None, 1, 1.0):
            raise ConfigurationError(f"model: partial_rotary_factor {partial} is not supported")
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        if kind == "default":
            return cls(theta=theta)
        if kind == "linear":
            return cls(theta=theta, kind="linear", factor=float(scaling["factor"]))
        if kind == "llama3":
            return cls(
                theta=theta,
                kind="llama3",
                factor=float(scaling["factor"]),
                low_frequency_factor=float(scaling["low_freq_factor"]),
                high_frequency_factor=float(scaling["high_freq_factor"]),
                original_max_position_embeddings=int(
                    scaling.get("original_max_position_embeddings") or max_position_embeddings
                ),
            )
        raise ConfigurationError(
            f"model: rope scaling {kind!r} is not supported, only default, linear and llama3"
        )
