"""How the cores of one machine are shared among the services of a local stack."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThreadBudget:
    """Kernel threads of one process of each kind."""

    weight_node: int
    weight_node_beside_attention: int
    """Of the weight node, while attention nodes compute."""
    attention_node: int


def all_threads(num_cpus: int, *, num_weight_nodes: int = 1) -> ThreadBudget:
    """Leave ``num_cpus`` cores to the weight nodes alone: attention nodes run on other machines.

    Their threads, 0 here, follow from what those machines give them.
    """
    share = max(1, num_cpus // max(1, num_weight_nodes))
    return ThreadBudget(weight_node=share, weight_node_beside_attention=share, attention_node=0)


def divide_threads(
    num_cpus: int, num_attention_nodes: int, *, num_weight_nodes: int = 1, node_threads: int = 0
) -> ThreadBudget:
    """Share ``num_cpus`` cores; ``node_threads`` says what each attention node gets, unless it is 0.

    Within a layer a weight node and the attention nodes take turns: it projects, they attend, it goes on.
    So one weight node uses every core while it computes alone, and several share them: while one waits the
    others compute. While attention nodes attend each weight node goes on with one part of the layer and then
    polls for their answers: one core is its own then, and they share the others. Each has at least one
    thread.
    """
    cpus, weights = max(1, num_cpus), max(1, num_weight_nodes)
    nodes = max(1, num_attention_nodes)
    attention_node = node_threads or max(1, (cpus - weights) // nodes)
    return ThreadBudget(
        weight_node=max(1, cpus // weights),
        weight_node_beside_attention=max(1, (cpus - nodes * attention_node) // weights),
        attention_node=attention_node,
    )
