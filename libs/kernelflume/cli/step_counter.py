"""The mean time of a step, from looks at how many there were. Pure."""

from __future__ import annotations


class StepCounter:
    """Counts the steps of one stretch. What medians leave out is in their mean.

    Numbers of steps are told now and then: one that is another than at the look before is as old as that look
    at most, while the first one may be older. So it counts from the first change to the last.
    """

    def __init__(self) -> None:
        self._changes: list[tuple[float, int]] = []

    def restart(self) -> None:
        """Forget what was counted: the steps were of another kind."""
        self._changes.clear()

    def look(self, now_s: float, num_steps: int) -> None:
        """Take in a look.

        Args:
            now_s: when, in seconds of any clock.
            num_steps: since any beginning.
        """
        if not self._changes or self._changes[-1][1] != num_steps:
            self._changes.append((now_s, num_steps))

    @property
    def num_steps(self) -> int:
        """Steps that are counted."""
        return self._changes[-1][1] - self._changes[1][1] if len(self._changes) > 1 else 0

    @property
    def mean_s(self) -> float:
        """Mean seconds of the steps that are counted; 0 while none is."""
        return (self._changes[-1][0] - self._changes[1][0]) / self.num_steps if self.num_steps else 0.0
