"""What the scaler tells Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kernelflume.core.routing import NodeState

if TYPE_CHECKING:
    from kernelflume.core.routing import RoutingSnapshot
    from kernelflume.scaler.operation import PhaseSpan, Result
    from kernelflume.scaler.policy import RemovalReason

# A phase takes from a publish's milliseconds to a drain's hours.
_PHASE_BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0)


class ScalerMetrics:
    """The scaler's metrics in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._operations = Counter(
            "kernelflume_scale_operations",
            "Scale operations that ended, by result.",
            ["result"],
            registry=self.registry,
        )
        self._phases = Histogram(
            "kernelflume_scale_phase_seconds",
            "Time that a phase of a scale operation took.",
            ["phase"],
            buckets=_PHASE_BUCKETS_S,
            registry=self.registry,
        )
        self._removals = Counter(
            "kernelflume_attention_nodes_removed",
            "Attention nodes taken out of the routing table without a drain, by reason.",
            ["reason"],
            registry=self.registry,
        )
        self._epoch = Gauge(
            "kernelflume_routing_epoch", "Epoch of the routing table.", registry=self.registry
        )
        self._nodes = Gauge(
            "kernelflume_attention_nodes",
            "Attention nodes in the routing table, by state.",
            ["state"],
            registry=self.registry,
        )

    def operation_ended(self, result: Result) -> None:
        """Count an operation."""
        self._operations.labels(str(result)).inc()

    def phase_ended(self, span: PhaseSpan, now_s: float) -> None:
        """Record how long a phase took."""
        self._phases.labels(str(span.phase)).observe(span.seconds(now_s))

    def node_removed(self, reason: RemovalReason) -> None:
        """Count a node that was lost."""
        self._removals.labels(str(reason)).inc()

    def table_seen(self, snapshot: RoutingSnapshot) -> None:
        """Show the present table."""
        self._epoch.set(snapshot.epoch)
        for state in NodeState:
            self._nodes.labels(str(state)).set(len(snapshot.in_state(state)))
