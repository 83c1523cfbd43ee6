"""`kernelflume status --check`: asks every node of a live cluster about its pages, and compares."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from kernelflume.cli.admin import CALL_TIMEOUT_S, scaler_admin
from kernelflume.core.errors import UnavailableError
from kernelflume.core.names import node_name
from kernelflume.core.page_audit import ClusterPages, HeldPages, NodePages, SequenceName, audit, lasting
from kernelflume.core.ranges import TokenRange
from kernelflume.rpc.codec import route_from_proto
from kernelflume.rpc.status import error_of
from kernelflume.rpc.v1 import anode_pb2, anode_pb2_grpc, scaler_pb2, wnode_pb2, wnode_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kernelflume.core.page_audit import Fault
    from kernelflume.rpc.channel import Channels

R = TypeVar("R")

BETWEEN_LOOKS_S = 3.0
"""Longer than news of a sequence take to reach the table, and its end to reach the attention nodes."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What came of a check."""

    looked_at: ClusterPages
    """The last look."""
    faults: tuple[Fault, ...]

    def lines(self) -> list[str]:
        """Return what a person reads."""
        nodes = self.looked_at.nodes
        num_pages = sum(len(node.num_holders) for node in nodes)
        num_cached = sum(len(node.cached) for node in nodes)
        num_free = sum(len(node.free) for node in nodes)
        num_pinned = sum(len(node.pinned) for node in nodes)
        num_sequences = len({name for node in nodes for name in node.sequences})
        checked = (
            f"{len(nodes)} attention node(s), {num_pages} pages: {num_pages - num_cached - num_free} held by "
            f"{num_sequences} sequence(s), {num_cached} cached, {num_free} free"
        )
        if num_pinned:
            checked += f"; {num_pinned} of those held or cached are pinned"
        if not self.faults:
            return [checked, "every page is accounted for"]
        seen = f"wrong in two looks {BETWEEN_LOOKS_S:g} s apart, as what moves meanwhile is in one alone:"
        return [checked, seen, *(f"  {fault}" for fault in self.faults)]

    def to_dict(self) -> dict[str, Any]:
        """Return what a program reads."""
        return {
            "nodes": [
                {
                    "node_id": node.node_id,
                    "num_pages": len(node.num_holders),
                    "num_cached_pages": len(node.cached),
                    "num_free_pages": len(node.free),
                    "num_pinned_pages": len(node.pinned),
                    "num_sequences": len(node.sequences),
                }
                for node in self.looked_at.nodes
            ],
            "faults": [dataclasses.asdict(fault) for fault in self.faults],
        }


def check_pages(scaler: str, channels: Channels, *, wait: Callable[[float], object]) -> CheckResult:
    """Look at a cluster and, where something is wrong, look again: sequences move while nodes are asked.

    Args:
        scaler: its address; it knows the nodes and the routes.
        channels: how services are called.
        wait: waits for so many seconds.

    Raises:
        UnavailableError: a node does not answer.
        KernelFlumeError: the scaler refuses.
    """
    looked_at = _look(scaler, channels)
    faults = audit(looked_at)
    if faults:
        wait(BETWEEN_LOOKS_S)
        looked_at = _look(scaler, channels)
        faults = lasting(faults, audit(looked_at))
    return CheckResult(looked_at, faults)


def _look(scaler: str, channels: Channels) -> ClusterPages:
    with scaler_admin(scaler, channels) as admin:
        topology = admin.GetTopology(scaler_pb2.GetTopologyRequest(), timeout=CALL_TIMEOUT_S)
    # The token is the scaler's.
    open_channel = dataclasses.replace(channels, token=None).open_blocking
    running = {}
    for weight in topology.weight_nodes:
        name = node_name(weight.node_id, weight.incarnation)
        with open_channel(weight.address) as channel:
            sequences = _asked(name, _sequences_of, channel)
        for sequence in sequences:
            running[SequenceName(name, sequence.sequence_id)] = route_from_proto(sequence.ranges)
    nodes = []
    for node in topology.attention_nodes:
        with open_channel(node.address) as channel:
            parts = _asked(node.node_id, _parts_of, channel)
        nodes.append(pages_of(node.node_id, parts))
    return ClusterPages(
        nodes=tuple(nodes),
        weight_nodes=frozenset(node_name(node.node_id, node.incarnation) for node in topology.weight_nodes),
        routes={
            SequenceName(item.weight_node, item.sequence_id): route_from_proto(item.ranges)
            for item in topology.sequences
        },
        running=running,
    )


def _sequences_of(channel: grpc.Channel) -> list[wnode_pb2.SequenceStatus]:
    stub = wnode_pb2_grpc.WeightNodeStub(channel)
    return list(stub.ListSequences(wnode_pb2.ListSequencesRequest(), timeout=CALL_TIMEOUT_S).sequences)


def _parts_of(channel: grpc.Channel) -> list[anode_pb2.PagesPart]:
    stub = anode_pb2_grpc.AttentionNodeStub(channel)
    return list(stub.ListPages(anode_pb2.ListPagesRequest(), timeout=CALL_TIMEOUT_S))


def _asked(name: str, ask: Callable[[grpc.Channel], R], channel: grpc.Channel) -> R:
    try:
        return ask(channel)
    except grpc.RpcError as failure:
        raise UnavailableError(f"{name} cannot be asked for what it holds: {error_of(failure)}") from failure


def pages_of(node_id: str, parts: Iterable[anode_pb2.PagesPart]) -> NodePages:
    """Put the parts of one node's answer together."""
    whole = anode_pb2.PagesPart()
    for part in parts:
        whole.MergeFrom(part)
    return NodePages(
        node_id=node_id,
        page_tokens=whole.page_tokens,
        num_holders=tuple(whole.num_holders),
        cached=tuple(whole.cached_pages),
        free=tuple(whole.free_pages),
        pinned=tuple(whole.pinned_pages),
        max_pinned=whole.max_pinned_pages,
        sequences={
            SequenceName(item.weight_node, item.sequence_id): HeldPages(
                tuple(TokenRange(span.start, span.end) for span in item.ranges), tuple(item.pages)
            )
            for item in whole.sequences
        },
    )
