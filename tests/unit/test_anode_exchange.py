from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
import torch

from kernelflume.anode.control import ConnectOrder
from kernelflume.anode.exchange import Exchange
from kernelflume.anode.kernels import choose_kernel
from kernelflume.anode.kvpool import KvPool
from kernelflume.anode.links import prepare_link
from kernelflume.core.errors import HandshakeError
from kernelflume.runtime.clock import ManualClock
from kernelflume.tensor.reference import dense_attention
from kernelflume.transport import wire
from kernelflume.transport.loopback import LoopbackNetwork, LoopbackTransport
from tests.anode import GEOMETRY, SilentDoorbell, Tokens, WeightNode, with_dtypes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.core.geometry import KvGeometry
    from kernelflume.transport.doorbell import Doorbell

PAGE_TOKENS = 4


class Node:
    """An attention node's exchange over loopback, and the weight nodes around it."""

    def __init__(self, geometry: KvGeometry = GEOMETRY, *, num_pages: int = 16) -> None:
        self.geometry = geometry
        self.network = LoopbackNetwork()
        self.transport = LoopbackTransport("a#1", self.network)
        self.doorbell = SilentDoorbell()
        self.clock = ManualClock()
        self.pool = KvPool(
            geometry, page_tokens=PAGE_TOKENS, num_bytes=num_pages * PAGE_TOKENS * geometry.token_bytes
        )
        self.exchange = Exchange(
            transport=self.transport,
            doorbell=cast("Doorbell", self.doorbell),
            pool=self.pool,
            kernel=choose_kernel("auto", num_kv_heads=geometry.num_kv_heads),
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
        connected = self.exchange.adopt(prepare_link(order, self.geometry, self.transport))
        node.connect("a#1", connected.metadata, connected.query_regions, connected.append_regions)

    def turn(self) -> None:
        self.exchange.turn(self.transport.poll())


def queries_of(geometry: KvGeometry, num_rows: int, seed: int = 0) -> torch.Tensor:
    """[num_layers, num_rows, num_query_heads, head_dim]"""
    shape = (geometry.num_layers, num_rows, geometry.num_query_heads, geometry.head_dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(getattr(torch, geometry.dtype))


def check_layer(
    node: WeightNode,
    queries: torch.Tensor,
    held: Sequence[tuple[int, Tokens]],
    layer: int,
    *,
    lane: int = 0,
    tolerance: float = 1e-5,
) -> None:
    """Compare a partial with the oracle, for (rows, tokens held) in row order."""
    partial = node.partial(len(queries), lane=lane)
    row = 0
    for num_rows, tokens in held:
        rows = slice(row, row + num_rows)
        expected = dense_attention(queries[rows], tokens.keys[layer], tokens.values[layer])
        torch.testing.assert_close(partial.out[rows].double(), expected.out, rtol=0, atol=tolerance)
        torch.testing.assert_close(partial.lse[rows].double(), expected.lse, rtol=0, atol=tolerance)
        row += num_rows


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "tolerance"),
    [
        ("float32", "float32", 1e-5),
        ("bfloat16", "bfloat16", 3e-2),
        ("float16", "float16", 4e-3),
        ("float32", "bfloat16", 3e-2),
    ],
)
def test_attention_equals_the_oracle_over_ragged_sequences(
    dtype: str, kv_dtype: str, tolerance: float
) -> None:
    geometry = with_dtypes(dtype, kv_dtype)
    node = Node(geometry)
    weight = node.link()
    generator = torch.Generator().manual_seed(1)
    lengths = {11: 1, 12: 4, 13: 9}
    tokens = {sequence: Tokens.random(geometry, length, generator) for sequence, length in lengths.items()}
    rows = torch.cat([tokens[sequence].rows(0, length) for sequence, length in lengths.items()], dim=1)
    weight.append(rows, [(sequence, length, 0) for sequence, length in lengths.items()])
    # One row, a chunk of rows, and rows of a sequence that holds nothing here.
    plan = [(12, 1, 4), (13, 5, 9), (11, 1, 1), (99, 2, 0)]
    queries = queries_of(geometry, 9)
    for layer in range(geometry.num_layers):
        weight.query(queries[layer], layer=layer, step=1, plan=plan)
        node.turn()
        *_, answer = weight.poll()
        assert answer == wire.Partial(0, layer, 1, wire.RowStatus.OK, 9, node.pool.allocator.num_free)
        check_layer(
            weight, queries[layer][:7], [(1, tokens[12]), (5, tokens[13]), (1, tokens[11])], layer,
            tolerance=tolerance,
        ) if False else None
        partial = weight.partial(9)
        row = 0
        for sequence, num_rows, _ in plan[:3]:
            part = slice(row, row + num_rows)
            expected = dense_attention(
                queries[layer][part], tokens[sequence].keys[layer], tokens[sequence].values[layer]
            )
            torch.testing.assert_close(partial.out[part].double(), expected.out, rtol=0, atol=tolerance)
            torch.testing.assert_close(partial.lse[part].double(), expected.lse, rtol=0, atol=tolerance)
            row += num_rows
        assert partial.lse[7:].eq(-torch.inf).all()
        assert partial.out[7:].eq(0).all()
