"""What stands between clients and the application: ids and logs, other sites' pages, keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.middleware.cors import CORSMiddleware

from kernelflume.router.auth import Authentication
from kernelflume.router.edge import REQUEST_ID_HEADER, Edge
from kernelflume.router.express import Express
from kernelflume.router.gateway import NODE_HEADER
from kernelflume.router.ui.files import page_paths

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp

    from kernelflume.router.admission import Admission
    from kernelflume.router.express import Endpoint
    from kernelflume.router.keysource import Keys
    from kernelflume.router.metrics import RouterMetrics
    from kernelflume.router.settings import RouterSettings
    from kernelflume.router.tenants import Tenant
    from kernelflume.runtime.clock import Clock

_PROBED_PATHS = ("/health", "/ready", "/metrics")
_EXPOSED_HEADERS = (
    REQUEST_ID_HEADER,
    NODE_HEADER,
    "retry-after",
    *(
        f"x-ratelimit-{what}-{kind}"
        for what in ("limit", "remaining", "reset")
        for kind in ("requests", "tokens")
    ),
)


def guard(
    app: ASGIApp,
    settings: RouterSettings,
    *,
    endpoints: Mapping[str, Endpoint],
    keys: Keys | None,
    admission: Admission,
    metrics: RouterMetrics,
    clock: Clock,
) -> ASGIApp:
    """Return the application with what the settings ask for around it.

    Args:
        app: the application.
        settings: of the router.
        endpoints: what answers a POST without the application's help, by path.
        keys: those that requests need, or None where they need none.
        admission: knows what each key has used.
        metrics: counts refusals.
        clock: for limits and log lines.
    """
    guarded: ASGIApp = Express(app, endpoints=endpoints, metrics=metrics)
    if keys is not None:
        guarded = Authentication(
            guarded,
            keys=keys,
            open_paths=settings.open_paths,
            # A browser sends no key for a page's files, and they say nothing of the cluster.
            open_files=page_paths() if settings.ui else (),
            default_limits=settings.auth.default_limits,
            metrics=metrics,
        )
    if settings.cors_origins:
        # Outside of the keys: a browser asks whether it may ask without one.
        guarded = CORSMiddleware(
            guarded,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=_EXPOSED_HEADERS,
        )

    def rate_headers(tenant: Tenant) -> Mapping[str, str]:
        return admission.usage(tenant).headers(clock.now())

    return Edge(guarded, clock=clock, rate_headers=rate_headers, quiet_paths=_PROBED_PATHS)
