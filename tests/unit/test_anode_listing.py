"""Every page of an attention node, from its pool to the one who checks it; and its figures."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.exchange_node import Node, store
from tests.unit.test_anode_blocks import blocks_of, find, free, named, share

from kernelflume.anode.metrics import AttentionNodeMetrics
from kernelflume.anode.pages_parts import parts_of
from kernelflume.cli.page_check import pages_of
from kernelflume.core.page_audit import ClusterPages, SequenceName, audit
from kernelflume.core.ranges import OwnedRange, SequenceRoute, TokenRange
from kernelflume.core.retention import Pinning, Retention


def busy_node() -> Node:
    """5 and 6 share two pages, one of them pinned, 5 and 7 have one of their own each; two are cached."""
    node = Node(num_pages=12, pinned_share=0.25)
    first, second = node.link("w-1#1"), node.link("w-2#1")
    named(node, first, 4, 8)
    free(node, first, 4)
    _, blocks = named(node, first, 5, 10)
    assert find(node, second, blocks_of("4", 8)) == [True, True]
    assert share(node, second, 6, blocks[:2], Pinning(Retention.DAY, 4)) == 2
    store(node, second, 7, 3)
    return node


@pytest.mark.parametrize("part_pages", [1, 2, 5, 100])
def test_a_listing_in_parts_is_whole_again(part_pages: int) -> None:
    node = busy_node()
    parts = list(parts_of(node.exchange.pages(), page_tokens=4, part_pages=part_pages))
    assert all(len(part.num_holders) + len(part.free_pages) <= part_pages for part in parts)
    pages = pages_of("a-1", parts)
    assert pages.page_tokens == 4
    assert sorted(pages.num_holders) == [0] * 8 + [1, 1, 2, 2]
    assert list(pages.cached) == list(node.pool.blocks.idle_pages)
    assert len(pages.free) == 6
    assert list(pages.pinned) == list(node.pool.blocks.pinned_pages)
    assert (len(pages.pinned), pages.max_pinned) == (1, 3)
    assert {name: held.ranges for name, held in pages.sequences.items()} == {
        SequenceName("w-1#1", 5): (TokenRange(0, 10),),
        SequenceName("w-2#1", 6): (TokenRange(0, 8),),
        SequenceName("w-2#1", 7): (TokenRange(0, 3),),
    }
    assert pages.sequences[SequenceName("w-1#1", 5)].pages[:2] == (
        pages.sequences[SequenceName("w-2#1", 6)].pages
    )


def test_a_node_that_did_all_of_this_is_sound() -> None:
    pages = pages_of("a-1", parts_of(busy_node().exchange.pages(), page_tokens=4))
    routes = {
        name: SequenceRoute(tuple(OwnedRange("a-1", part) for part in held.ranges))
        for name, held in pages.sequences.items()
    }
    cluster = ClusterPages(
        nodes=(pages,), weight_nodes=frozenset({"w-1#1", "w-2#1"}), routes=routes, running=routes
    )
    assert audit(cluster) == ()


def test_the_figures_tell_hits_and_what_is_cached() -> None:
    statistics = busy_node().exchange.statistics()
    assert (statistics.num_pages, statistics.num_free_pages, statistics.num_cached_pages) == (12, 8, 2)
    assert (statistics.num_tokens, statistics.num_cached_tokens) == (10 + 3, 8)
    assert (statistics.tokens_found, statistics.tokens_shared) == (8, 8)
    assert (statistics.pages_evicted, statistics.pages_expired) == (0, 0)
    assert (statistics.num_pinned_tokens, statistics.max_pinned_tokens) == (4, 12)


def test_metrics_are_those_that_were_told_last() -> None:
    node = busy_node()
    weight = node.link("w-3#1")
    metrics = AttentionNodeMetrics()
    assert samples_of(metrics) == {}
    metrics.take(node.exchange.statistics())
    assert samples_of(metrics) == {
        'kernelflume_kv_pages{state="held"}': 4,
        'kernelflume_kv_pages{state="cached"}': 2,
        'kernelflume_kv_pages{state="free"}': 6,
        "kernelflume_kv_tokens": 13,
        "kernelflume_cache_tokens_found_total": 8,
        "kernelflume_cache_tokens_shared_total": 8,
        'kernelflume_cache_evicted_pages_total{reason="room"}': 0,
        'kernelflume_cache_evicted_pages_total{reason="ttl"}': 0,
        "kernelflume_cache_pinned_tokens": 4,
        "kernelflume_cache_max_pinned_tokens": 12,
        "kernelflume_cache_pages_pinned_total": 1,
        "kernelflume_cache_pins_refused_total": 0,
        'kernelflume_cache_pins_ended_total{reason="displaced"}': 0,
        'kernelflume_cache_pins_ended_total{reason="room"}': 0,
        'kernelflume_cache_pins_ended_total{reason="expired"}': 0,
        'kernelflume_cache_pins_ended_total{reason="given_up"}': 0,
    }
    store(node, weight, 1, 16)
    store(node, weight, 2, 12)
    metrics.take(node.exchange.statistics())
    assert samples_of(metrics)['kernelflume_cache_evicted_pages_total{reason="room"}'] == 1


def samples_of(metrics: AttentionNodeMetrics) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(metrics)
    lines = generate_latest(registry).decode().splitlines()
    samples = [line.rpartition(" ") for line in lines if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in samples}
