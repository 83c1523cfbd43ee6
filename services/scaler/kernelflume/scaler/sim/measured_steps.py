"""Steps of a machine that was measured: a performance profile in place of kernels and a roofline.

A weight node and attention nodes of one machine, as `kernelflume serve` starts them, share its cores. Decode
steps follow the profile as the live policy reads it. Prompts are computed in steps that decode as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernelflume.core import pipeline_profile
from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from kernelflume.core.profile import PerformanceProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What steps take in a run, beside what the profile says."""

    step_factor: float = 1.0
    node_share: float | None = None
    """By which share of a step every further attention node with KV makes it longer; None for the
    profile's."""


class MeasuredSteps:
    """Seconds of steps by a profile; a step model."""

    def __init__(self, profile: PerformanceProfile, *, token_bytes: int, calibration: Calibration) -> None:
        """Build the model.

        Args:
            profile: of the machine and the model.
            token_bytes: of one token's keys and values in all layers.
            calibration: of the steps; prompts take what they do in the profile.

        Raises:
            ConfigurationError: the profile does not tell what prompts take.
        """
        if profile.prefill_s is None:
            raise ConfigurationError(
                "the profile does not tell what prompts take: measure it again with `kernelflume profile`"
            )
        self._profile = profile
        self._prefill = profile.prefill_s
        self._token_bytes = token_bytes
        self._step_factor = calibration.step_factor
        measured_share = profile.further_node_share or 0.0
        self._node_share = measured_share if calibration.node_share is None else calibration.node_share

    def step_s(self, rows: int, most_read_tokens: float, num_shards: int) -> float:
        """Return T_step; without captured graphs there is one microbatch."""
        factor = self._step_factor * (1 + self._node_share * (num_shards - 1))
        return factor * self._measured_s(rows, most_read_tokens)

    def prefill_s(self, tokens: int) -> float:
        """Return by how much a prompt of so many tokens makes the steps longer that it shares with others.

        Measured was a prompt alone. What its step takes beside the prompt's rows, a step that decodes takes
        anyway; its chunks are in the measured time.
        """
        return max(0.0, self._prefill.at(tokens) - self._measured_s(1, 0.0)) if tokens else 0.0

    def _measured_s(self, rows: int, most_read_tokens: float) -> float:
        return pipeline_profile.step_s(
            self._profile, rows=rows, most_held_bytes=most_read_tokens * self._token_bytes
        )
