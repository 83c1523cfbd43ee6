"""What an attention node tells Prometheus: its worker's figures, as they were told last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from kernelflume.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.core import Metric

    from kernelflume.anode.control import WorkerStatistics


class AttentionNodeMetrics(Collector):
    """Shows the newest figures; the worker does the counting. Nothing is shown before the first ones."""

    def __init__(self) -> None:
        self._statistics: WorkerStatistics | None = None

    def take(self, statistics: WorkerStatistics) -> None:
        """Show these from now on."""
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        """Give every metric; called by the server's thread."""
        told = self._statistics
        if told is None:
            return
        pages = GaugeMetricFamily(
            "kernelflume_kv_pages",
            "Pages of the pool: held by sequences, cached (kept without a sequence), free.",
            labels=["state"],
        )
        pages.add_metric(["held"], told.num_pages - told.num_free_pages)
        pages.add_metric(["cached"], told.num_cached_pages)
        pages.add_metric(["free"], told.num_free_pages - told.num_cached_pages)
        yield pages
        yield GaugeMetricFamily(
            "kernelflume_kv_tokens", "Tokens that sequences hold here.", value=told.num_tokens
        )
        yield CounterMetricFamily(
            "kernelflume_cache_tokens_found",
            "Tokens of blocks that weight nodes asked for and that were here.",
            value=told.tokens_found,
        )
        yield CounterMetricFamily(
            "kernelflume_cache_tokens_shared",
            "Tokens that sequences were given without being computed again.",
            value=told.tokens_shared,
        )
        evictions = CounterMetricFamily(
            "kernelflume_cache_evicted_pages",
            "Cached pages that were dropped: for want of room, or as their time to live was over.",
            labels=["reason"],
        )
        evictions.add_metric(["room"], told.pages_evicted)
        evictions.add_metric(["ttl"], told.pages_expired)
        yield evictions
        yield GaugeMetricFamily(
            "kernelflume_cache_pinned_tokens",
            "Tokens of blocks that are pinned, whether sequences hold them or not.",
            value=told.num_pinned_tokens,
        )
        yield GaugeMetricFamily(
            "kernelflume_cache_max_pinned_tokens",
            "Most tokens that may be pinned: the node's pinned_share.",
            value=told.max_pinned_tokens,
        )
        yield CounterMetricFamily(
            "kernelflume_cache_pages_pinned", "Pages that were pinned.", value=told.pin_counts.num_taken
        )
        yield CounterMetricFamily(
            "kernelflume_cache_pins_refused",
            "Pages that were to be pinned while sequences held as many pinned ones as may be.",
            value=told.pin_counts.num_refused,
        )
        ended = CounterMetricFamily(
            "kernelflume_cache_pins_ended",
            "Pages that were unpinned: displaced by newer pins, dropped as sequences needed the room, not "
            "used for a day, or given up by a request.",
            labels=["reason"],
        )
        for reason, count in told.pin_counts.by_reason().items():
            ended.add_metric([reason], count)
        yield ended


def serve_metrics(host: str, port: int, metrics: AttentionNodeMetrics) -> Callable[[], None]:
    """Serve metrics from a thread of their own; the returned call ends it.

    Raises:
        ConfigurationError: nobody can listen there.
    """
    registry = CollectorRegistry()
    registry.register(metrics)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigurationError(f"metrics-port: cannot listen on {host}:{port}: {error}") from error

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return close
