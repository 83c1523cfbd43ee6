"""Whether a weight node that has work makes steps: one that hangs looks healthy from outside otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelflume.rpc.v1 import wnode_pb2
    from kernelflume.runtime.clock import Clock


class ProgressWatch:
    """Watches one weight node's count of steps."""

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        """Begin to watch.

        Args:
            clock: for the time without a step.
            timeout_s: so long a node with requests may make none.
        """
        self._clock = clock
        self._timeout_s = timeout_s
        self._num_steps = -1
        self._moved_at = clock.now()

    def look(self, load: wnode_pb2.WeightNodeLoad) -> str | None:
        """Take in a report; return why the node cannot serve, or None when it moves or has no work."""
        now = self._clock.now()
        has_work = load.num_requests_running or load.num_requests_waiting
        if load.num_steps != self._num_steps or not has_work:
            self._num_steps = load.num_steps
            self._moved_at = now
        if now - self._moved_at <= self._timeout_s:
            return None
        return f"it has requests and made no step for {self._timeout_s:g} s"
