"""What the scaler tells Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kernelflume.core.routing import NodeState
from kernelflume.scaler.sizing import SizingAction

if TYPE_CHECKING:
    from kernelflume.core.profile import PerformanceProfile
    from kernelflume.core.routing import RoutingSnapshot
    from kernelflume.scaler.operation import PhaseSpan, Result
    from kernelflume.scaler.policy import RemovalReason
    from kernelflume.scaler.sizing import Sizing

# A phase takes from a publish's milliseconds to a drain's hours.
_SHOWN_ROWS = (1, 8, 32)
"""Numbers of rows at which the exchange time is shown."""
_PREPARE_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
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
        self._prepared = Histogram(
            "kernelflume_prepare_seconds",
            "Time that a weight node took to prepare its path to an attention node, by part.",
            ["part"],
            buckets=_PREPARE_BUCKETS_S,
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

        self._fill = Gauge(
            "kernelflume_fill_seconds",
            "Predicted time until an attention node reaches its threshold (tau_fill).",
            ["node"],
            registry=self.registry,
        )
        self._horizon = Gauge(
            "kernelflume_pool_fill_seconds",
            "Predicted time until the active attention nodes together reach their threshold.",
            registry=self.registry,
        )
        self._threshold = Gauge(
            "kernelflume_threshold_tokens",
            "Tokens up to which the active attention nodes are planned with (C_thresh).",
            registry=self.registry,
        )
        self._decisions = Counter(
            "kernelflume_scale_decisions",
            "Decisions of the scaling policy that led to an action, by reason.",
            ["action", "reason"],
            registry=self.registry,
        )

        self._bandwidth = Gauge(
            "kernelflume_attention_bytes_per_second",
            "Keys and values that one attention node scans a second, as the policy reads it.",
            registry=self.registry,
        )
        self._exchange = Gauge(
            "kernelflume_exchange_seconds",
            "Part of a layer's attention time that does not grow with what is held, by the rows of a step, "
            "as the policy reads it.",
            ["rows"],
            registry=self.registry,
        )

    def operation_ended(self, result: Result) -> None:
        """Count an operation."""
        self._operations.labels(str(result)).inc()

    def phase_ended(self, span: PhaseSpan, now_s: float) -> None:
        """Record how long a phase took."""
        self._phases.labels(str(span.phase)).observe(span.seconds(now_s))

    def path_prepared(self, connect_s: float, warm_s: float) -> None:
        """Record what preparing one path took."""
        self._prepared.labels("connect").observe(connect_s)
        self._prepared.labels("warm").observe(warm_s)

    def node_removed(self, reason: RemovalReason) -> None:
        """Count a node that was lost."""
        self._removals.labels(str(reason)).inc()

    def sized(self, sizing: Sizing) -> None:
        """Show what a sizing decision came to."""
        self._fill.clear()
        for node in sizing.figures.nodes:
            self._fill.labels(node.node_id).set(node.fill_s)
        self._horizon.set(sizing.figures.horizon_s)
        self._threshold.set(sizing.figures.threshold_tokens)
        if sizing.action is not SizingAction.NONE:
            self._decisions.labels(str(sizing.action), str(sizing.reason)).inc()

    def profile_refined(self, profile: PerformanceProfile) -> None:
        """Show the profile that the policy reads now."""
        self._bandwidth.set(profile.attention_bytes_per_s)
        for rows in _SHOWN_ROWS:
            self._exchange.labels(str(rows)).set(profile.exchange_s.at(rows))

    def table_seen(self, snapshot: RoutingSnapshot) -> None:
        """Show the present table."""
        self._epoch.set(snapshot.epoch)
        for state in NodeState:
            self._nodes.labels(str(state)).set(len(snapshot.in_state(state)))
