"""What a weight node's /metrics makes of the engine's reports."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import CollectorRegistry

from kernelflume.core.profile import StepTimes
from kernelflume.wnode.kv_traffic import KvTraffic
from kernelflume.wnode.messages import EngineReport
from kernelflume.wnode.metrics import WeightNodeMetrics


def report(times: StepTimes | None, *, num_microbatches: int) -> EngineReport:
    return EngineReport(
        num_steps=9,
        num_running=2,
        num_waiting=1,
        num_tokens=100,
        num_restarts=0,
        prompt_tokens=50,
        prefix_queries=0,
        prefix_hits=0,
        generation_tokens=18,
        step_seconds=(0.01, 0.02),
        exposed_wait_seconds=0.0,
        sequences=(),
        num_waiting_tokens=0,
        decode_step_s=0.01,
        num_decode_rows=2,
        step_times=times,
        num_graph_steps=9,
        num_graph_captures=14,
        num_microbatches=num_microbatches,
    )


def test_microbatches_and_stages_are_those_of_the_latest_report() -> None:
    registry = CollectorRegistry()
    metrics = WeightNodeMetrics(registry)
    times = StepTimes(
        rows=2, step_s=0.01, projection_s=1e-5, attention_s=2e-5, post_attention_s=3e-5, overhead_s=4e-3
    )
    metrics.take_report(report(times, num_microbatches=2))
    assert registry.get_sample_value("kernelflume_microbatches") == 2
    stages = {
        name: registry.get_sample_value("kernelflume_stage_seconds", {"stage": name})
        for name in ("projection", "attention", "post_attention", "overhead")
    }
    assert stages == {"projection": 1e-5, "attention": 2e-5, "post_attention": 3e-5, "overhead": 4e-3}
    metrics.take_report(report(None, num_microbatches=1))
    assert registry.get_sample_value("kernelflume_microbatches") == 1
    assert registry.get_sample_value("kernelflume_stage_seconds", {"stage": "attention"}) == 2e-5
    assert registry.get_sample_value("kernelflume_graph_steps_total") == 9


def test_sums_of_keys_and_values_sent_are_counted_by_their_path() -> None:
    registry = CollectorRegistry()
    metrics = WeightNodeMetrics(registry)
    first = KvTraffic(layer_bytes=10, step_bytes=20, graph_bytes=30, layer_exposed_s=0.5, step_exposed_s=1.5)
    for traffic in (first, replace(first, layer_bytes=15, step_exposed_s=2.5)):
        metrics.take_report(replace(report(None, num_microbatches=1), kv_traffic=traffic))
    values = {
        (name, path): registry.get_sample_value(f"kernelflume_kv_{name}_total", {"path": path})
        for name, path in [
            ("bytes_sent", "layers"),
            ("bytes_sent", "step"),
            ("bytes_sent", "graph"),
            ("exposed_seconds", "layers"),
            ("exposed_seconds", "step"),
        ]
    }
    assert list(values.values()) == [15, 20, 30, 0.5, 2.5]
