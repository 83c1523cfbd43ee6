"""What full instances are, and the rules by which turns go to them. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelflume.scaler.sim.step_model import StepModel
    from kernelflume.scaler.sim.strategy_settings import Admission, Instances


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceKind:
    """What each instance is."""

    hardware: str
    num_ranks: int
    """CP."""
    gpus_per_rank: int
    rank_capacity_tokens: int
    token_bytes: int
    steps: StepModel

    @property
    def capacity_tokens(self) -> int:
        """Tokens that an instance holds."""
        return self.num_ranks * self.rank_capacity_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRules:
    """How turns are placed."""

    admission: Admission
    placement: str
    migrates: bool
    elasticity: Instances | None
    """None for a fixed number of instances."""
    num_instances: int
    """At the start."""
    longest_tokens: int = 0
    """The longest context that any session may have, which admission by ``longest`` keeps free."""
