"""Puts the live page into the router's application."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelflume.router.latencies import RecentLatencies
from kernelflume.router.ui.collector import Collector
from kernelflume.router.ui.routes import ui_routes
from kernelflume.router.ui.sight import SightReader

if TYPE_CHECKING:
    from fastapi import FastAPI

    from kernelflume.router.metrics import RouterMetrics
    from kernelflume.router.settings import RouterSettings
    from kernelflume.router.ui.sight import Store
    from kernelflume.router.weightnodes import WeightNodes
    from kernelflume.rpc.channel import Channels
    from kernelflume.runtime.clock import Clock


def mount_page(
    app: FastAPI,
    settings: RouterSettings,
    *,
    store: Store,
    nodes: WeightNodes,
    channels: Channels,
    metrics: RouterMetrics,
    clock: Clock,
) -> Collector:
    """Add the page to ``app``; its collector must be closed before the server ends.

    Args:
        app: the application.
        settings: of the router.
        store: the routing-table store.
        nodes: the weight nodes that the router uses.
        channels: how the scaler is called.
        metrics: tell the latencies from now on.
        clock: for latencies.
    """
    first_token, between_tokens = RecentLatencies(clock), RecentLatencies(clock)
    metrics.tell_latencies(first_token=first_token, between_tokens=between_tokens)
    collector = Collector(
        SightReader(store=store, nodes=nodes, channels=channels),
        first_token=first_token,
        between_tokens=between_tokens,
        model=settings.model_names[0],
        version=app.version,
        max_viewers=settings.ui_max_viewers,
        clock=clock,
    )
    app.include_router(
        ui_routes(
            collector,
            write_timeout_s=settings.write_timeout,
            slow_reader_timeout_s=settings.slow_reader_timeout,
            clock=clock,
        )
    )
    return collector
