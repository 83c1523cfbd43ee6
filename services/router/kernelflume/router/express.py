"""A short way for the busiest requests: to the gateway, past what the framework does for each of them.

The framework still has the same routes, for its document and for whatever is not served here, such as a
wrong method. What a client sees is the same.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse

from kernelflume.router.errors import api_error_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from prometheus_client import Counter
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from kernelflume.router.metrics import RouterMetrics

    Endpoint = Callable[[Request], Awaitable[Response]]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Route:
    path: str


class Express:
    """ASGI middleware that answers POST requests to some paths itself."""

    def __init__(self, app: ASGIApp, *, endpoints: Mapping[str, Endpoint], metrics: RouterMetrics) -> None:
        """Take a short way past an application.

        Args:
            app: answers everything else.
            endpoints: what answers a POST, by path.
            metrics: counts responses as the application does.
        """
        self._app = app
        self._endpoints = dict(endpoints)
        self._metrics = metrics
        self._counters: dict[tuple[str, int], Counter] = {}
        """Of responses by path and status: few, as all paths are known."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        endpoint = self._endpoints.get(scope["path"]) if scope["type"] == "http" else None
        if endpoint is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        path = scope["path"]

        async def counting_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._count(path, message["status"])
            await send(message)

        # As the framework notes it, for whoever logs the request.
        scope["route"] = _Route(path)
        response: Response
        try:
            response = await endpoint(Request(scope, receive, counting_send))
        except Exception as error:  # whatever it is, the client is answered
            refused = api_error_of(error)
            if refused.status == 500:
                logger.exception("a request failed")
            response = JSONResponse(refused.body(), status_code=refused.status, headers=refused.headers())
        await response(scope, receive, counting_send)

    def _count(self, path: str, status: int) -> None:
        counter = self._counters.get((path, status))
        if counter is None:
            counter = self._counters[path, status] = self._metrics.http_responses.labels(path, status)
        counter.inc()
