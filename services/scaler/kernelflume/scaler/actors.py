"""What a scale operation acts through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kernelflume.rpc.channel import PLAINTEXT
from kernelflume.runtime.tracing import NO_TRACER

if TYPE_CHECKING:
    from kernelflume.rpc.channel import Channels
    from kernelflume.runtime.clock import Clock
    from kernelflume.runtime.tracing import Tracer
    from kernelflume.scaler.operation import OperationEvent
    from kernelflume.scaler.providers.base import Provider
    from kernelflume.scaler.table import Table
    from kernelflume.scaler.weights import WeightNodes
    from kernelflume.store.base import RoutingStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Actors:
    """The store, the table in it, the nodes' provider, the weight nodes, and how long to be patient."""

    store: RoutingStore
    table: Table
    provider: Provider
    weights: WeightNodes
    clock: Clock
    commit_patience_s: float
    """How long a publish that ends or undoes an operation is tried while the store is unreachable."""
    release_timeout_s: float
    """Longest wait for weight nodes to forget nodes that are going away anyway."""
    terminate_grace_s: float
    """Time that a node gets to end by itself."""
    terminate_margin_s: float = 60.0
    """Beyond it, the provider is not waited for any more: it has asked machines that do not answer."""
    channels: Channels = PLAINTEXT
    """How nodes are asked whether they serve."""
    tracer: Tracer = NO_TRACER
    """Follows operations."""


class Progress(Protocol):
    """Where an operation tells what it has come to; the runner is behind it."""

    def advance(self, event: OperationEvent) -> None:
        """Move to the next phase."""
        ...

    async def wait_publish(self) -> None:
        """Wait until prewarmed nodes may be published, which is at once unless the operation is held."""
        ...

    def name_nodes(self, *node_ids: str) -> None:
        """Name the nodes that are added or removed, before anything happens to them in the table."""
        ...


class Scaling(Protocol):
    """One kind of operation: how it is done, and how it is undone."""

    async def run(self) -> None:
        """Go through all phases; may be cancelled wherever the operation's table allows CANCEL."""
        ...

    async def roll_back(self) -> None:
        """Restore the start after ``run`` failed or was cancelled, as far as that can be reached."""
        ...
