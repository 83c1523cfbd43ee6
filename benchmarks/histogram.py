"""Quantiles of a service's own histogram."""

from __future__ import annotations

import httpx


def upper_bounds(metrics_port: int, name: str, *shares: float) -> tuple[int, list[float]]:
    """Return how many observations a histogram has, and for each share the bucket bound that covers it.

    Args:
        metrics_port: Prometheus port of a service on this machine.
        name: name of the histogram.
        shares: such as 0.5 for the median.
    """
    lines = httpx.get(f"http://127.0.0.1:{metrics_port}/metrics", timeout=10).text.splitlines()
    buckets = [
        (float(line.partition('le="')[2].partition('"')[0]), float(line.rsplit(" ", 1)[1]))
        for line in lines
        if line.startswith(f"{name}_bucket")
    ]
    total = buckets[-1][1]
    bounds = [next(bound for bound, count in buckets if count >= share * total) for share in shares]
    return int(total), bounds
