"""Where the time of a step goes, for the profile that the scaling policy reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelflume.core.profile import StepTimes

if TYPE_CHECKING:
    from kernelflume.runtime.clock import Clock
    from kernelflume.wnode.pipeline.live_profile import StepStages

_MARKS = 4
"""Marks a layer: the query is projected, is dispatched; the local work is done, the layer is done."""


class StepClock:
    """Read four times a layer, which costs below a thousandth of a step. Used by the engine's thread alone.

    In order: ``begin``, a ``mark`` where the layers begin, four in each layer, ``end_layers``, ``end``. Sums
    are left to the end, for a mark is on the critical path of every layer.
    """

    def __init__(self, clock: Clock) -> None:
        self._now = clock.now
        self._marks: list[float] = []
        self._began_at = 0.0
        self._ended_at: float | None = None
        self._waited_s = 0.0

    def rest(self) -> None:
        """Note that no step follows the last one directly: the time until the next is nobody's."""
        self._ended_at = None

    def begin(self) -> None:
        """Begin a step: where the last one ended, so that planning and emission are counted."""
        self._began_at = self._now() if self._ended_at is None else self._ended_at
        self._ended_at = None
        self._marks.clear()

    def mark(self) -> None:
        """Note that the next of a layer's four parts is done."""
        self._marks.append(self._now())

    def end_layers(self, *, waited_s: float) -> None:
        """End the last layer; ``waited_s`` of the layers' last parts was spent waiting for partials."""
        self._waited_s = waited_s

    def end(self, *, rows: int, num_layers: int) -> StepTimes:
        """End the step and return its times."""
        now = self._ended_at = self._now()
        step_s = now - self._began_at
        marks = self._marks
        begun, projected, dispatched, attended = (sum(marks[part:-1:_MARKS]) for part in range(_MARKS))
        done = sum(marks[_MARKS::_MARKS])
        projection_s = projected - begun + attended - dispatched
        dispatch_s = dispatched - projected
        remainder_s = max(0.0, done - attended - self._waited_s)
        return StepTimes(
            rows=rows,
            step_s=step_s,
            projection_s=projection_s / num_layers,
            attention_s=(dispatch_s + self._waited_s) / num_layers,
            post_attention_s=remainder_s / num_layers,
            overhead_s=max(0.0, step_s - (marks[-1] - marks[0])),
        )

    def end_graph(self, stages: StepStages | None, *, rows: int) -> StepTimes | None:
        """End a step that ran as one graph, whose stages the pipeline's profile knows; return its times.

        What the graph spent outside the layers and what the host took around it are overhead.
        """
        now = self._ended_at = self._now()
        if stages is None:
            return None
        step_s = now - self._began_at
        return StepTimes(
            rows=rows,
            step_s=step_s,
            projection_s=stages.projection_s,
            attention_s=stages.attention_s,
            post_attention_s=stages.post_attention_s,
            overhead_s=max(0.0, step_s - stages.graph_s) + stages.outside_s,
        )
