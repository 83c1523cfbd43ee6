"""What the courses of all choices share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelflume.router.metrics import RouterMetrics
    from kernelflume.router.placer import Placer
    from kernelflume.router.roster import Roster
    from kernelflume.router.weightnodes import WeightNodes
    from kernelflume.runtime.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class CourseParts:
    """Where choices run, who decides it and counts it, and how long things may take."""

    nodes: WeightNodes
    placer: Placer
    metrics: RouterMetrics
    clock: Clock
    request_timeout_s: float
    """Bound of a choice, all its runs together."""
    resume_timeout_s: float
    """Bound of the search for a node that goes on with it."""
    hand_over_timeout_s: float
    """Bound of the wait for the first token of a node that a choice moves to."""
    roster: Roster
    """Where courses enter themselves while they run."""
