"""The section `strategies` of a configuration: what is compared."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kernelflume.scaler.scaling_policy import ScalingPolicy
from kernelflume.scaler.sim.section import Count, Positive, Seconds, Section, Share

MERGE_LATENCY_S = 22e-6
"""One exchange of queries and partial attention, measured on two H200 of one host (docs/gpu.md)."""

Admission = Literal["current", "peak", "longest"]
"""A turn needs room for its prompt; or for all that its session will ever hold, and others likewise; or for
the longest context that any may have, and at most one instance. Sessions between turns keep what they have
until no instance can be added for a turn that waits: then the longest idle give way."""
RankFill = Literal["even", "in_order"]
"""Ranks of one instance hold equal parts of each sequence; or are filled one after another, like attention
nodes, so that a step takes what a full rank does."""


class Fixed(Section):
    """A pool of weight-bearing ranks of a fixed number (paper section 6.4)."""

    kind: Literal["fixed"]
    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    size_for: Literal["average", "maximum", "longest", "bound"] = "maximum"
    """Ranks are as many as hold the mean, or the most, KV of the workload on an unbounded pool; or the
    longest sessions of the workload, as many as are open together, each at its end; or as many sessions as
    long as any may be (``maximum_context_tokens``): the worst that can come."""
    num_ranks: Count | None = None
    """So many ranks instead."""
    admission: Admission = "current"
    rank_fill: RankFill = "even"
    migrates: bool = False
    """A sequence that outgrows its instance moves to another with room; false recomputes it later."""
    merge_latency_s: Seconds = MERGE_LATENCY_S
    """A layer's exchange of partial attention between ranks, without its bytes."""


class Instances(Section):
    """Full instances that come and go, in the manner of ServerlessLLM (paper section 6.4)."""

    kind: Literal["instances"]
    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    ranks_per_instance: Count = 1
    """CP: GPUs, or tensor-parallel groups, that share the KV of an instance."""
    merge_latency_s: Seconds = MERGE_LATENCY_S
    """A layer's exchange of partial attention between ranks, without its bytes."""
    minimum_instances: Count = 1
    maximum_instances: Count = 64
    startup_s: Seconds = 1.1
    """From the decision to an instance that decodes. The paper: 1.1 s by its loader, 10.8 s from disk."""
    bills_startup: bool = True
    trigger_utilisation: Share | None = None
    """Start one more when held KV exceeds this share of the capacity; a turn that finds no room starts one
    in any case."""
    trigger_step_s: Positive | None = None
    """Start one more when a step of any instance takes longer; unset: steps do not matter."""
    admission: Admission = "current"
    rank_fill: RankFill = "even"
    placement: Literal["emptiest", "fullest"] = "emptiest"
    """Among instances with room: the one with the most of it, or with the least, so that others may end."""
    migrates: bool = False
    scale_in_idle_s: Seconds = 60.0
    """An instance that holds nothing for so long ends. The policy's cooldown is as long."""
    scale_in_utilisation: Share | None = None
    """When the others would hold everything below this share of their capacity, for as long as above, the
    emptiest takes no more turns and ends with its last one; unset: instances are left to become empty."""
    migration_gb_per_s: Positive | None = None
    """How fast KV moves to another instance, while its session waits; unset: at once."""
    load_gb_per_s: Positive | None = None
    """How fast each GPU gets its weights, on top of `startup_s`; unset: that time has it all."""

    @property
    def needs_looks(self) -> bool:
        """Whether there is something to look for from time to time."""
        watched = (self.trigger_utilisation, self.trigger_step_s, self.scale_in_utilisation)
        return any(setting is not None for setting in watched)


class Spot(Section):
    """Attention nodes that their provider takes away again."""

    preemptions_per_node_hour: Positive
    """Mean; the time until it happens is exponential."""
    notice_s: Seconds = 30.0
    """Between the notice and the end: 30 s on Azure and Google Cloud, 120 s on AWS."""


class KernelFlume(Section):
    """Weight nodes and attention nodes under the live policy."""

    kind: Literal["kernelflume"]
    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    attention_hardware: str | None = None
    """Of attention nodes; unset: as the weight node."""
    attention_price: str | None = None
    """Name of the price of attention nodes, such as one of spot nodes; unset: that of their hardware."""
    attention_gpus: Count = 1
    """GPUs of one attention node; heads are divided among them."""
    weight_nodes: Count = 1
    """They share the batch evenly, and all attention nodes."""
    replicas: Count = 1
    """Nodes that hold each token: capacity is paid so many times, and a lost node costs no computation."""
    spot: Spot | None = None
    """Unset: attention nodes stay until they are drained."""
    placement: Literal["level", "pack"] = "level"
    """Prompts leave nodes equally free, as live; or fill the oldest nodes first, so that others may go."""
    policy: ScalingPolicy = ScalingPolicy()
    """As the live scaler's; its SLO is the simulation's unless it names one."""
    prewarm_s: Seconds = 0.412
    """From the decision to a node that can be published. The paper: 412 ms from scratch."""
    look_s: Positive = 0.25
    """Between two looks of the scaler, as live."""
    exchange_latency_s: Seconds = MERGE_LATENCY_S
    """A layer's exchange without its bytes: 618 us on one GPU, 640 us apart, on two H200 of one host."""
    query_first: bool = True
    """Attention begins before K and V are projected."""
    microbatches: tuple[Literal[1, 2, 4], ...] = (1, 2)
    """Numbers of microbatches to choose from."""
    spread_tokens: Count = 1024
    """Prompts of twice as many are spread over nodes."""


Strategy = Annotated[Fixed | Instances | KernelFlume, Field(discriminator="kind")]
