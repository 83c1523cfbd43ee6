"""A weight node's engine with attention nodes beside it, in one process, until the test ends."""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from kernelflume.transport.loopback import LoopbackNetwork
from tests.inprocess import GEOMETRY, LocalAttentionNode, LocalWeightNode

if TYPE_CHECKING:
    from kernelflume.core.geometry import KvGeometry


class EngineRig:
    """Call it for a weight node and its attention nodes; call it again for more on the same network."""

    def __init__(self) -> None:
        self.network = LoopbackNetwork()
        self._parts = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._parts.close()

    def __call__(
        self,
        num_nodes: int,
        *,
        num_pages: int = 200,
        active: int | None = None,
        geometry: KvGeometry = GEOMETRY,
        pinned_share: float = 0.25,
        **options: Any,
    ) -> tuple[LocalWeightNode, list[LocalAttentionNode]]:
        nodes = [
            LocalAttentionNode(
                f"a{i}#1", self.network, num_pages=num_pages, geometry=geometry, pinned_share=pinned_share
            )
            for i in range(num_nodes)
        ]
        for node in nodes:
            self._parts.callback(node.stop)
        return self.weight_node(nodes, active=active, geometry=geometry, **options), nodes

    def weight_node(
        self, nodes: list[LocalAttentionNode], *, active: int | None = None, **options: Any
    ) -> LocalWeightNode:
        """Link one more weight node to attention nodes."""
        weight = LocalWeightNode(self.network, **options)
        self._parts.callback(weight.close)
        for node in nodes:
            weight.attach(node)
        weight.adopt(*[f"a{i}" for i in range(len(nodes) if active is None else active)])
        return weight


def prompt(length: int, seed: int = 0) -> list[int]:
    """Make up a prompt."""
    return random.Random(seed).choices(range(256), k=length)  # noqa: S311 - a repeatable prompt
