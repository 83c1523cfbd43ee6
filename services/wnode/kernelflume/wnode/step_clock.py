"""Where the time of a step goes, for the profile that the scaling policy reads."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from kernelflume.core.profile import StepTimes

if TYPE_CHECKING:
    from kernelflume.runtime.clock import Clock


class Stage(IntEnum):
    """What a lap of a layer is counted as."""

    PROJECTION = 0
    DISPATCH = 1
    REMAINDER = 2
    """The wait for partials, told by ``end_layers``, and what comes after it."""


class StepClock:
    """Read four times a layer, which costs below a thousandth of a step. Used by the engine's thread alone.

    In order: ``begin``, ``begin_layers``, for each layer ``lap`` after every stage, ``end_layers``, ``end``.
    """

    def __init__(self, clock: Clock) -> None:
        self._now = clock.now
        self._seconds = [0.0] * len(Stage)
        self._began_at = 0.0
        self._lapped_at = 0.0
        self._ended_at: float | None = None
        self._waited_s = 0.0

    def rest(self) -> None:
        """Note that no step follows the last one directly: the time until the next is nobody's."""
        self._ended_at = None

    def begin(self) -> None:
        """Begin a step: where the last one ended, so that planning and emission are counted."""
        self._began_at = self._now() if self._ended_at is None else self._ended_at
        self._ended_at = None

    def begin_layers(self) -> None:
        """Begin the first layer."""
        self._seconds = [0.0] * len(Stage)
        self._lapped_at = self._now()

    def lap(self, stage: Stage) -> None:
        """Count the time since the last lap as ``stage``."""
        now = self._now()
        self._seconds[stage] += now - self._lapped_at
        self._lapped_at = now

    def end_layers(self, *, waited_s: float) -> None:
        """End the last layer; ``waited_s`` of all layers' remainder was spent waiting for partials."""
        self._waited_s = waited_s

    def end(self, *, rows: int, num_layers: int) -> StepTimes:
        """End the step and return its times."""
        now = self._ended_at = self._now()
        step_s = now - self._began_at
        projection_s, dispatch_s, remainder_s = self._seconds
        return StepTimes(
            rows=rows,
            step_s=step_s,
            projection_s=projection_s / num_layers,
            attention_s=(dispatch_s + self._waited_s) / num_layers,
            post_attention_s=max(0.0, remainder_s - self._waited_s) / num_layers,
            overhead_s=max(0.0, step_s - projection_s - dispatch_s - remainder_s),
        )
