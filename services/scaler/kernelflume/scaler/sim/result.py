"""What a strategy comes to, in figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernelflume.scaler.sim.config import Price
    from kernelflume.scaler.sim.measures import Timeline
    from kernelflume.scaler.sim.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a strategy comes to."""

    strategy: str
    layout: str
    """For people: ranks, nodes."""
    output_tokens: int
    refused_tokens: int
    num_steps: int
    duration_s: float
    step_mean_s: float
    step_p50_s: float
    step_p99_s: float
    step_attainment: float
    """Share of decode steps within the objective: the paper's figure."""
    turn_p50_s: float
    turn_p99_s: float
    """Seconds a token of whole turns, waiting included."""
    turn_attainment: float
    """Share of tokens whose turn was within the objective, waiting included; refused ones count as not."""
    num_waits: int
    num_put_aside: int
    num_moved: int
    num_preempted: int
    prefilled_tokens: int
    """Computed elsewhere before turns could be decoded, those once more included."""
    fetched_tokens: int
    """Found in the prefix cache instead."""
    recomputed_tokens: int
    """Contexts of sessions that were put aside, prefilled once more."""
    num_changes: int
    most_gpus: int
    gpu_hours: dict[str, float]
    cost_usd: float
    usd_per_million_tokens: float
    timeline: Timeline


def summarize(
    name: str,
    layout: str,
    world: World,
    *,
    end_s: float,
    prices: Mapping[str, Price],
    other_usd_per_hour: float = 0.0,
) -> Result:
    """Sum up a simulation that has ended, all bills closed.

    Args:
        name: of the strategy.
        layout: for people.
        world: what was measured.
        end_s: when it ended.
        prices: of GPUs, by name.
        other_usd_per_hour: what else is paid all the time: the prefix cache.
    """
    meter, turns = world.meter, world.turns
    gpu_hours = world.billing.gpu_hours()
    cost = sum(hours * prices[hardware].usd_per_gpu_hour for hardware, hours in gpu_hours.items())
    cost += other_usd_per_hour * end_s / 3600
    asked = turns.total + world.refused_tokens
    return Result(
        strategy=name,
        layout=layout,
        output_tokens=meter.num_tokens,
        refused_tokens=world.refused_tokens,
        num_steps=meter.num_steps,
        duration_s=end_s,
        step_mean_s=meter.steps.mean_s,
        step_p50_s=meter.steps.quantile(0.5),
        step_p99_s=meter.steps.quantile(0.99),
        step_attainment=meter.num_within / meter.num_steps if meter.num_steps else 1.0,
        turn_p50_s=turns.quantile(0.5),
        turn_p99_s=turns.quantile(0.99),
        turn_attainment=world.num_tokens_within / asked if asked else 1.0,
        num_waits=world.num_waits,
        num_put_aside=world.num_put_aside,
        num_moved=world.num_moved,
        num_preempted=world.num_preempted,
        prefilled_tokens=world.prefilled_tokens,
        fetched_tokens=world.fetched_tokens,
        recomputed_tokens=world.recomputed_tokens,
        num_changes=world.timeline.num_changes,
        most_gpus=world.billing.most_gpus,
        gpu_hours=gpu_hours,
        cost_usd=cost,
        usd_per_million_tokens=cost / meter.num_tokens * 1e6 if meter.num_tokens else 0.0,
        timeline=world.timeline,
    )
