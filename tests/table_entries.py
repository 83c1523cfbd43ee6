"""Attention nodes of a routing table of which nothing matters but their ids and states."""

from __future__ import annotations

from kernelflume.core.routing import AttentionNodeEntry, NodeState


def entry(node_id: str, state: NodeState = NodeState.ACTIVE) -> AttentionNodeEntry:
    return AttentionNodeEntry(
        node_id=node_id, incarnation="0", address="h:1", state=state, capacity_tokens=9, threshold_tokens=9
    )
