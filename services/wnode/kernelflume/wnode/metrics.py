"""Prometheus metrics of a weight node; vLLM's names where the meaning is the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kernelflume.wnode.hand_over_counts import HandOverCounts
from kernelflume.wnode.kv_traffic import KvTraffic

if TYPE_CHECKING:
    from kernelflume.wnode.messages import Adopted, EngineReport, LinkLost, StepOutput

_MICROSECOND_BUCKETS = tuple(step * scale for scale in (1e-6, 1e-5, 1e-4, 1e-3) for step in (1, 2, 3, 5, 7))
_STEP_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)


_QUEUE_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class WeightNodeMetrics:
    """Collectors fed by the engine's events."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._running = Gauge("vllm:num_requests_running", "Requests in the batch.", registry=registry)
        self._waiting = Gauge("vllm:num_requests_waiting", "Requests in the queue.", registry=registry)
        self._prompt = Counter("vllm:prompt_tokens", "Prompt tokens computed.", registry=registry)
        self._generation = Counter("vllm:generation_tokens", "Tokens generated.", registry=registry)
        self._prefix_queries = Counter(
            "vllm:prefix_cache_queries",
            "Prompt tokens of the requests that looked theirs up in the pool.",
            registry=registry,
        )
        self._prefix_hits = Counter(
            "vllm:prefix_cache_hits",
            "Prompt tokens that were found there and not computed.",
            registry=registry,
        )
        self._kv_usage = Gauge(
            "vllm:kv_cache_usage_perc",
            "Share of the active attention nodes' pages that are in use; 1 is all.",
            registry=registry,
        )
        self._queue_time = Histogram(
            "vllm:request_queue_time_seconds",
            "Time from a request's arrival to its first step.",
            buckets=_QUEUE_BUCKETS,
            registry=registry,
        )
        self._restarts = Counter(
            "vllm:num_preemptions", "Sequences that were restarted and recomputed.", registry=registry
        )
        self._steps = Histogram(
            "kernelflume_step_seconds", "Duration of a step.", buckets=_STEP_BUCKETS, registry=registry
        )
        self._exposed = Counter(
            "kernelflume_exposed_wait_seconds", "Time steps waited for attention nodes.", registry=registry
        )
        self._epoch = Gauge("kernelflume_adopted_epoch", "Epoch of the snapshot in use.", registry=registry)
        self._install = Histogram(
            "kernelflume_route_install_seconds",
            "Time in the step loop to adopt a snapshot.",
            buckets=_MICROSECOND_BUCKETS,
            registry=registry,
        )
        self._rebalance = Histogram(
            "kernelflume_tail_rebalance_seconds",
            "Time in the step loop to decide tail moves after a snapshot was adopted.",
            buckets=_MICROSECOND_BUCKETS,
            registry=registry,
        )
        self._moved = Counter(
            "kernelflume_tails_moved", "Tails that moved to another node.", registry=registry
        )
        self._graph_steps = Counter(
            "kernelflume_graph_steps", "Steps that ran as one captured graph.", registry=registry
        )
        self._captures = Gauge(
            "kernelflume_graph_captures", "Graphs captured since the start.", registry=registry
        )
        self._num_graph_steps = 0
        self._microbatches = Gauge(
            "kernelflume_microbatches",
            "Microbatches of the latest step that ran as a captured graph; 0 before the first.",
            registry=registry,
        )
        self._stages = Gauge(
            "kernelflume_stage_seconds",
            "Median time of the latest decode steps: of a layer's stages, and of a step's rest (overhead).",
            ["stage"],
            registry=registry,
        )
        self._kv_bytes = Counter(
            "kernelflume_kv_bytes_sent",
            "Keys and values sent to attention nodes: layer by layer (layers), once a step (step), or by "
            "captured steps (graph).",
            ["path"],
            registry=registry,
        )
        self._kv_exposed = Counter(
            "kernelflume_kv_exposed_seconds",
            "Time from the end of a step's last layer until its keys and values were on their way.",
            ["path"],
            registry=registry,
        )
        self._kv_traffic = KvTraffic()
        self._hand_overs = Counter(
            "kernelflume_hand_overs",
            "Sequences held for another weight node (held), those of them that went on here after all "
            "(gone_on) or that nobody asked for in time (expired), and those taken from another one (taken).",
            ["event"],
            registry=registry,
        )
        self._recomputed = Counter(
            "kernelflume_hand_over_recomputed_tokens",
            "Tokens of sequences taken from another weight node that had to be computed again.",
            registry=registry,
        )
        self._hand_over_counts = HandOverCounts()
        self._lost = Counter("kernelflume_attention_nodes_lost", "Links that broke.", registry=registry)
        self._seen = (0, 0, 0, 0, 0)

    def take_outputs(self, event: StepOutput) -> None:
        """Note how long the requests waited whose first token this step brought."""
        for output in event.outputs:
            if output.queue_s is not None:
                self._queue_time.observe(output.queue_s)

    def take_report(self, report: EngineReport) -> None:
        """Add what happened since the last report."""
        self._running.set(report.num_running)
        self._waiting.set(report.num_waiting)
        self._kv_usage.set(report.kv_usage)
        totals = (
            report.prompt_tokens,
            report.generation_tokens,
            report.num_restarts,
            report.prefix_queries,
            report.prefix_hits,
        )
        counters = (self._prompt, self._generation, self._restarts, self._prefix_queries, self._prefix_hits)
        for counter, total, seen in zip(counters, totals, self._seen, strict=True):
            counter.inc(total - seen)
        self._seen = totals
        for seconds in report.step_seconds:
            self._steps.observe(seconds)
        self._exposed.inc(report.exposed_wait_seconds)
        self._graph_steps.inc(report.num_graph_steps - self._num_graph_steps)
        self._num_graph_steps = report.num_graph_steps
        self._take_traffic(report.kv_traffic)
        self._take_hand_overs(report.hand_overs)
        self._captures.set(report.num_graph_captures)
        self._microbatches.set(report.num_microbatches)
        times = report.step_times
        if times is not None:
            self._stages.labels("projection").set(times.projection_s)
            self._stages.labels("attention").set(times.attention_s)
            self._stages.labels("post_attention").set(times.post_attention_s)
            self._stages.labels("overhead").set(times.overhead_s)

    def _take_hand_overs(self, counts: HandOverCounts) -> None:
        before, self._hand_over_counts = self._hand_over_counts, counts
        self._hand_overs.labels("held").inc(counts.num_held - before.num_held)
        self._hand_overs.labels("gone_on").inc(counts.num_gone_on - before.num_gone_on)
        self._hand_overs.labels("expired").inc(counts.num_expired - before.num_expired)
        self._hand_overs.labels("taken").inc(counts.num_taken - before.num_taken)
        self._recomputed.inc(counts.num_recomputed_tokens - before.num_recomputed_tokens)

    def _take_traffic(self, traffic: KvTraffic) -> None:
        before, self._kv_traffic = self._kv_traffic, traffic
        self._kv_bytes.labels("layers").inc(traffic.layer_bytes - before.layer_bytes)
        self._kv_bytes.labels("step").inc(traffic.step_bytes - before.step_bytes)
        self._kv_bytes.labels("graph").inc(traffic.graph_bytes - before.graph_bytes)
        self._kv_exposed.labels("layers").inc(traffic.layer_exposed_s - before.layer_exposed_s)
        self._kv_exposed.labels("step").inc(traffic.step_exposed_s - before.step_exposed_s)

    def take_adopted(self, adopted: Adopted) -> None:
        """Note an adopted snapshot."""
        self._epoch.set(adopted.epoch)
        self._install.observe(adopted.install_seconds)
        self._rebalance.observe(adopted.rebalance_seconds)
        self._moved.inc(adopted.num_tails_moved)

    def take_lost(self, lost: LinkLost) -> None:
        """Note a broken link."""
        del lost
        self._lost.inc()
