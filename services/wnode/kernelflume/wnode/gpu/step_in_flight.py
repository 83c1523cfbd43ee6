"""A step that was launched and is to be settled later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from kernelflume.core.errors import PeerLostError
    from kernelflume.wnode.batch import StepBatch
    from kernelflume.wnode.gpu.captured_steps import SplitStep, Timer
    from kernelflume.wnode.gpu.lane_routes import LaneRoutes
    from kernelflume.wnode.gpu.lane_tokens import ChosenTokens
    from kernelflume.wnode.gpu.step_stream import Mark
    from kernelflume.wnode.link import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInFlight:
    """What was launched. Its nodes know of it, and its graph is enqueued."""

    number: int
    batch: StepBatch
    launched_at_s: float
    split: SplitStep
    routes: tuple[LaneRoutes, ...]
    """Of each part's lane."""
    links: Mapping[str, Link]
    """Of the nodes that take part, by node id."""
    logits: tuple[Tensor, ...]
    """Of each part's lane; those of the step behind replace them."""
    chosen: tuple[ChosenTokens, ...]
    """Of each part's lane, complete when it is done."""
    timer: Timer
    done: Mark
    loss: PeerLostError | None
    """The node that could not be told of it: it runs through, and gives nothing."""
