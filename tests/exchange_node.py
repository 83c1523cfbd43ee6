"""An attention node's exchange over the in-memory transport, and the weight nodes around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from kernelflume.anode.block_index import BlockIndex
from kernelflume.anode.control import ConnectOrder
from kernelflume.anode.exchange import Exchange
from kernelflume.anode.kernels import choose_kernel
from kernelflume.anode.kvpool import KvPool
from kernelflume.anode.links import prepare_link
from kernelflume.runtime.clock import ManualClock
from kernelflume.tensor.reference import dense_attention
from kernelflume.transport import wire
from kernelflume.transport.loopback import LoopbackNetwork, LoopbackTransport
from tests.anode import GEOMETRY, OnePlanKernel, SilentDoorbell, Tokens, WeightNode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.core.geometry import KvGeometry
    from kernelflume.transport.doorbell import Doorbell

PAGE_TOKENS = 4


class Node:
    """An attention node's exchange over loopback, and the weight nodes around it."""

    def __init__(
        self,
        geometry: KvGeometry = GEOMETRY,
        *,
        num_pages: int = 16,
        is_cache: bool = True,
        ttl_s: float = 0.0,
        pinned_share: float = 0.0,
    ) -> None:
        self.geometry = geometry
        self.network = LoopbackNetwork()
        self.transport = LoopbackTransport("a#1", self.network)
        self.doorbell = SilentDoorbell()
        self.clock = ManualClock()
        self.pool = KvPool(
            geometry,
            page_tokens=PAGE_TOKENS,
            num_bytes=num_pages * PAGE_TOKENS * geometry.token_bytes,
            blocks=BlockIndex(self.clock, is_cache=is_cache, ttl_s=ttl_s, pinned_share=pinned_share),
        )
        self.kernel = OnePlanKernel(choose_kernel("auto", self.pool))
        self.exchange = Exchange(
            transport=self.transport,
            doorbell=cast("Doorbell", self.doorbell),
            pool=self.pool,
            clock=self.clock,
        )

    def link(self, name: str = "w#1", *, num_lanes: int = 1, max_rows: int = 16) -> WeightNode:
        transport = self.network.agents.get(name) or LoopbackTransport(name, self.network)
        node = WeightNode(transport, self.geometry, num_lanes=num_lanes, max_rows=max_rows)
        self.relink(node)
        return node

    def relink(self, node: WeightNode) -> None:
        name = node.transport.name
        order = ConnectOrder(
            weight_node=name,
            metadata=node.transport.metadata(),
            num_lanes=node.num_lanes,
            max_rows=node.layout.max_rows,
            partial_regions=node.partial_regions,
            doorbell_address="127.0.0.1:7",
        )
        self.exchange.replace(name)
        connected = self.exchange.adopt(
            prepare_link(order, self.geometry, self.transport, self.pool.device, kernel=self.kernel)
        )
        node.connect("a#1", connected.metadata, connected.query_regions, connected.append_regions)

    def turn(self) -> None:
        self.exchange.turn(self.transport.poll())


def queries_of(geometry: KvGeometry, num_rows: int, seed: int = 0) -> torch.Tensor:
    """[num_layers, num_rows, num_query_heads, head_dim]"""
    shape = (geometry.num_layers, num_rows, geometry.num_query_heads, geometry.head_dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(
        getattr(torch, geometry.dtype)
    )


def check_layer(
    node: WeightNode,
    queries: torch.Tensor,
    held: Sequence[tuple[int, Tokens]],
    layer: int,
    *,
    lane: int = 0,
    bucket_rows: int = 0,
    tolerance: float = 1e-5,
) -> None:
    """Compare a partial with the oracle, for (rows, tokens held) in row order."""
    partial = node.partial(bucket_rows or len(queries), lane=lane)
    row = 0
    for num_rows, tokens in held:
        rows = slice(row, row + num_rows)
        expected = dense_attention(queries[rows], tokens.keys[layer], tokens.values[layer])
        torch.testing.assert_close(partial.out[rows].double(), expected.out, rtol=0, atol=tolerance)
        torch.testing.assert_close(partial.lse[rows].double(), expected.lse, rtol=0, atol=tolerance)
        row += num_rows


def store(node: Node, weight: WeightNode, sequence: int, num_tokens: int, *, lane: int = 0) -> Tokens:
    """Append a new sequence from position 0 and take the answer in."""
    tokens = Tokens.random(node.geometry, num_tokens, torch.Generator().manual_seed(sequence))
    weight.append(tokens.rows(0, num_tokens), [(sequence, num_tokens, 0)], lane=lane)
    node.turn()
    assert not cast("wire.Appended", weight.poll()[-1]).failed
    return tokens


def ask(
    node: Node, weight: WeightNode, plan: list[tuple[int, int, int]], *, step: int = 1, lane: int = 0
) -> tuple[wire.Partial, torch.Tensor]:
    """Send layer 0 and return the answer and the queries."""
    queries = queries_of(node.geometry, sum(rows for _, rows, _ in plan), seed=step)[0]
    weight.query(queries, layer=0, step=step, plan=plan, lane=lane)
    node.turn()
    answer = weight.poll()[-1]
    assert isinstance(answer, wire.Partial)
    return answer, queries
