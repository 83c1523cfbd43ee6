"""What the policy sees: one consistent enough look at the table, the leases and the provider."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelflume.core.leases import LeaseRecord, NodeKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kernelflume.core.routing import AttentionNodeEntry, NodeState, RoutingSnapshot
    from kernelflume.runtime.clock import Clock
    from kernelflume.scaler.book import OperationBook
    from kernelflume.scaler.operation import Operation
    from kernelflume.scaler.providers.base import Provider
    from kernelflume.scaler.table import Table
    from kernelflume.store.base import RoutingStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """State of the pool at one moment."""

    now_s: float
    """The scaler's own monotonic clock."""
    snapshot: RoutingSnapshot
    attention: Mapping[str, LeaseRecord]
    """Living attention nodes by node id."""
    weights: tuple[LeaseRecord, ...]
    """Living weight nodes."""
    routed_weight_nodes: frozenset[str] = frozenset()
    """Names of the weight nodes that have routes in the store."""
    ended: Mapping[str, str] = field(default_factory=dict)
    """Attention nodes whose process the provider saw end unasked -> how."""
    num_offered: int | None = None
    """Living nodes outside the table, where the provider only adopts what others start; None where it starts
    as many as it is asked for."""
    operation: Operation | None = None
    """The running operation."""

    def num_in_state(self, state: NodeState) -> int:
        """Return how many nodes of the table are in ``state``."""
        return len(self.snapshot.in_state(state))

    def is_alive(self, entry: AttentionNodeEntry) -> bool:
        """Return whether this very start of the node holds its lease."""
        record = self.attention.get(entry.node_id)
        return record is not None and record.incarnation == entry.incarnation


async def observe(
    store: RoutingStore, table: Table, provider: Provider, book: OperationBook, clock: Clock
) -> Observation:
    """Look at everything once.

    Raises:
        UnavailableError: the store cannot be reached.
    """
    attention = {record.node_id: record for record in await store.living(NodeKind.ATTENTION)}
    weights = tuple(await store.living(NodeKind.WEIGHT))
    routed = await store.routed_weight_nodes()
    # The table last: whatever it names was already looked for above, and a node that has just joined it is
    # only ever taken for lost after the grace.
    snapshot = await table.read(
        newest_adopted=max((record.load.adopted_epoch for record in weights), default=0)
    )
    # And the operation after it: one that has begun owns whatever it did to the table so far.
    operation = book.running
    offered = attention.keys() - {node.node_id for node in snapshot.nodes}
    return Observation(
        now_s=clock.now(),
        snapshot=snapshot,
        attention=attention,
        weights=weights,
        routed_weight_nodes=routed,
        ended=provider.ended(),
        num_offered=len(offered) if provider.adopts else None,
        operation=operation,
    )
