"""Weight nodes as placement sees them, and which of them may take what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from kernelflume.core.roles import WeightNodeRole

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightNodeView:
    """One weight node as this router sees it: what it last reported, and what is known since."""

    address: str
    node_id: str = ""
    """Its name; empty until it told."""
    role: WeightNodeRole = WeightNodeRole.BOTH
    serving: bool
    num_requests: int
    """Running and waiting there."""
    num_own_requests: int = 0
    """Of these, this router's."""
    num_tokens: int
    """Ongoing tokens: of the prompts and outputs of these requests."""
    num_pending_tokens: int = 0
    """Tokens of prompts that are to be computed and are not yet."""
    queue_full: bool
    """It last reported a full queue."""
    max_num_seqs: int = 0
    """Requests that run at once there; 0 while it has not told."""

    @property
    def would_run(self) -> bool:
        """True when one more request would run there, and not wait for another to end."""
        return self.num_requests < self.max_num_seqs


@dataclass(frozen=True, slots=True)
class Candidates:
    """The nodes that a request may be placed on, by what it may ask of them; some may be empty."""

    all: tuple[WeightNodeView, ...]
    """Whatever their roles."""
    whole: tuple[WeightNodeView, ...]
    """For whole requests."""
    prefill: tuple[WeightNodeView, ...]
    """For prompts alone: dedicated nodes where there are any."""
    decode: tuple[WeightNodeView, ...]
    """For what follows the first token."""
    queues_full: bool
    """Every node that serves reported a full queue, and these are all of them nevertheless."""

    @classmethod
    def among(cls, nodes: Sequence[WeightNodeView], failed: Collection[str]) -> Self | None:
        """Sort the nodes that serve and did not fail this request yet; None where there are none.

        A report of a full queue may be old: such nodes are used when there are no others, for the node
        itself refuses better than we can.
        """
        untried = tuple(node for node in nodes if node.serving and node.address not in failed)
        if not untried:
            return None
        open_nodes = tuple(node for node in untried if not node.queue_full)
        usable = open_nodes or untried
        dedicated = tuple(node for node in usable if node.role is WeightNodeRole.PREFILL)
        return cls(
            all=usable,
            whole=tuple(node for node in usable if node.role is WeightNodeRole.BOTH),
            prefill=dedicated or tuple(node for node in usable if node.role.takes_prompts),
            decode=tuple(node for node in usable if node.role.takes_decoding),
            queues_full=not open_nodes,
        )


def least_requests(nodes: Sequence[WeightNodeView]) -> WeightNodeView:
    """Return the node with the fewest requests, then the fewest tokens, then the first address."""
    return min(nodes, key=lambda node: (node.num_requests, node.num_tokens, node.address))


def least_tokens(nodes: Sequence[WeightNodeView]) -> WeightNodeView:
    """Return the node with the fewest ongoing tokens, then the fewest requests, then the first address."""
    return min(nodes, key=lambda node: (node.num_tokens, node.num_requests, node.address))


def least_pending(nodes: Sequence[WeightNodeView]) -> WeightNodeView:
    """Return the node with the fewest prompt tokens to compute, then the fewest requests and tokens."""
    return min(
        nodes, key=lambda node: (node.num_pending_tokens, node.num_requests, node.num_tokens, node.address)
    )


def least_product(nodes: Sequence[WeightNodeView], num_new_tokens: int) -> WeightNodeView:
    """Return the node whose prompt tokens to compute, the new ones among them, times requests are least."""

    def score(node: WeightNodeView) -> tuple[int, int, int, str]:
        product = (node.num_pending_tokens + num_new_tokens) * node.num_requests
        return (product, node.num_pending_tokens, node.num_tokens, node.address)

    return min(nodes, key=score)


def is_overloaded(node: WeightNodeView, nodes: Sequence[WeightNodeView], factor: float) -> bool:
    """Tell whether a node has more than ``factor`` times the average ongoing tokens of these nodes."""
    average = sum(other.num_tokens for other in nodes) / len(nodes)
    return node.num_tokens > factor * average
