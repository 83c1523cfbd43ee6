"""Sights of a cluster for tests of the live page."""

from __future__ import annotations

from kernelflume.core.leases import LeaseRecord, NodeKind, NodeLoad
from kernelflume.core.ranges import OwnedRange, SequenceRoute, TokenRange
from kernelflume.core.routing import AttentionNodeEntry, NodeState, RoutingSnapshot
from kernelflume.router.ui.sight import SequenceSight, Sight, WeightNodeSight

WEIGHT_ADDRESS = "127.0.0.1:9200"


def entry(node_id: str, state: NodeState = NodeState.ACTIVE, *, incarnation: str = "1") -> AttentionNodeEntry:
    return AttentionNodeEntry(
        node_id=node_id,
        incarnation=incarnation,
        address="127.0.0.1:9300",
        state=state,
        capacity_tokens=1000,
        threshold_tokens=900,
    )


def attention_lease(node_id: str, *, used: int = 0, incarnation: str = "1") -> LeaseRecord:
    return LeaseRecord(
        kind=NodeKind.ATTENTION,
        node_id=node_id,
        incarnation=incarnation,
        address="127.0.0.1:9300",
        load=NodeLoad(capacity_tokens=1000, used_tokens=used, reserved_tokens=used, num_sequences=1),
    )


def weight_lease(node_id: str = "w-1", *, epoch: int = 7, address: str = WEIGHT_ADDRESS) -> LeaseRecord:
    return LeaseRecord(
        kind=NodeKind.WEIGHT,
        node_id=node_id,
        incarnation="1",
        address=address,
        load=NodeLoad(
            adopted_epoch=epoch,
            num_requests_running=2,
            num_requests_waiting=1,
            waiting_tokens=30,
            tails=(("a-1", 2), ("a-2", 1)),
            decode_step_s=0.0183,
            num_decode_rows=2,
        ),
    )


def route(*pieces: tuple[str, int]) -> SequenceRoute:
    """Return a route of ranges by node and number of tokens."""
    ranges, position = [], 0
    for node_id, num_tokens in pieces:
        ranges.append(OwnedRange(node_id, TokenRange(position, position + num_tokens)))
        position += num_tokens
    return SequenceRoute(tuple(ranges))


def sequence(sequence_id: int, *pieces: tuple[str, int]) -> SequenceSight:
    return SequenceSight(weight_node=WEIGHT_ADDRESS, sequence_id=sequence_id, route=route(*pieces))


def sight(*nodes: AttentionNodeEntry, epoch: int = 7) -> Sight:
    """Return a sight of ``nodes``, each with its lease, and one weight node."""
    return Sight(
        table=RoutingSnapshot(epoch=epoch, nodes=nodes),
        attention_leases=tuple(
            attention_lease(node.node_id, used=250, incarnation=node.incarnation) for node in nodes
        ),
        weight_leases=(weight_lease(epoch=epoch),),
        weight_nodes=(WeightNodeSight(address=WEIGHT_ADDRESS, trouble=None, num_requests=3, num_tokens=600),),
    )
