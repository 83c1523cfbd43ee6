"""Recordings for tests, with figures that are easy to reckon with."""

from __future__ import annotations

from typing import Any

from kernelflume.core.profile import Curve, PerformanceProfile
from kernelflume.core.recording import RecordedOperation, RecordedRequest, Recording


def flat_profile(step_s: float = 0.1, row_s: float = 0.0) -> PerformanceProfile:
    """Return a profile of one layer: steps take ``step_s``, and ``row_s`` for each row after the first."""
    nothing = Curve(((1.0, 0.0),))
    return PerformanceProfile(
        model_id="m",
        hardware="a machine",
        num_layers=1,
        projection_s=nothing,
        post_attention_s=nothing,
        step_overhead_s=Curve(((1.0, step_s), (1001.0, step_s + 1000 * row_s))),
        exchange_s=nothing,
        attention_bytes_per_s=1e15,
        prewarm_s=0.5,
        prefill_s=Curve(((1.0, step_s), (1001.0, step_s + 1000 * row_s))),
    )


def request(sent_s: float = 0.0, **changes: Any) -> RecordedRequest:
    """Return a request of 10 prompt tokens and 11 answered ones, 0.1 s each."""
    base = {"first_token_s": sent_s + 0.1, "ended_s": sent_s + 1.1}
    base |= {"prompt_tokens": 10, "cached_tokens": 0, "output_tokens": 11}
    return RecordedRequest(**({"sent_s": sent_s} | base | changes))


def operation(**changes: Any) -> RecordedOperation:
    """Return an operation that adds a-2 at 2 s, ready after half a second and published after one."""
    base: dict[str, Any] = {"started_s": 2.0, "initial": 1, "target": 2, "cause": "horizon"}
    base |= {"result": "succeeded", "node_ids": ("a-2",)}
    base["phases"] = (
        ("launching", 0.3),
        ("prewarming", 0.2),
        ("ready", 0.4),
        ("publishing", 0.1),
        ("done", 0.0),
    )
    return RecordedOperation(**(base | changes))


def recording(**changes: Any) -> Recording:
    """Return a run of 20 seconds on one node of 1000 tokens."""
    base: dict[str, Any] = {"created": "2026-01-01T00:00:00+00:00", "workload": "w", "duration_s": 20.0}
    base |= {"initial_nodes": ("a-1",), "node_capacity_tokens": 1000, "page_tokens": 1, "token_bytes": 1}
    base |= {"has_prefix_cache": False}
    base |= {"policy": "maximum_nodes: 4\n", "profile": flat_profile(), "operations": ()}
    return Recording(**(base | {"requests": (request(),)} | changes))
