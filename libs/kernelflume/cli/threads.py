"""How the cores of one machine are shared among the services of a local stack."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThreadBudget:
    """Kernel threads of one process of each kind."""

    weight_node: int
    attention_node: int


def divide_threads(num_cpus: int, num_attention_nodes: int) -> ThreadBudget:
    """Share ``num_cpus`` cores.

    Within a layer the weight node and the attention nodes take turns: it projects, they attend, it goes on.
    So the weight node may use every core while it computes, and the attention nodes share the cores among
    themselves while they do; none is given more threads than there are cores, and each has at least one.
    """
    cpus = max(1, num_cpus)
    return ThreadBudget(weight_node=cpus, attention_node=max(1, cpus // max(1, num_attention_nodes)))
