"""The outermost layer of the gateway: request ids, what logs say of a request, and headers on rate limits."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from kernelflume.router.identifiers import Identifiers
from kernelflume.router.tenants import tenant_of
from kernelflume.runtime.logging import LOG_FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from kernelflume.router.tenants import Tenant
    from kernelflume.runtime.clock import Clock

logger = logging.getLogger(__name__)

REQUEST_ID_HEADER = "x-request-id"
_RAW_REQUEST_ID_HEADER = REQUEST_ID_HEADER.encode()
_GOOD_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
"""What may be repeated in headers and logs; another one is replaced."""


class Edge:
    """ASGI middleware around everything else, errors included. Nothing is done a token."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        clock: Clock,
        rate_headers: Callable[[Tenant], Mapping[str, str]],
        quiet_paths: Collection[str],
    ) -> None:
        """Wrap an application.

        Args:
            app: the application.
            clock: for the times in log lines.
            rate_headers: headers that tell a tenant what it may still use.
            quiet_paths: paths whose requests are not logged, for probes come every second.
        """
        self._app = app
        self._clock = clock
        self._rate_headers = rate_headers
        self._quiet_paths = frozenset(quiet_paths)
        self._identifiers = Identifiers()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _given_id(scope) or f"req-{self._identifiers.new()}"
        scope.setdefault("state", {})["request_id"] = request_id
        # The request has a task of its own, whose context nobody else shares.
        LOG_FIELDS.set({"request_id": request_id})
        began_at = self._clock.now()
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message["headers"], (_RAW_REQUEST_ID_HEADER, request_id.encode())]
                tenant = tenant_of(scope)
                if tenant.limits.any:
                    rates = self._rate_headers(tenant)
                    headers += ((name.encode(), value.encode()) for name, value in rates.items())
                message["headers"] = headers
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        finally:
            if scope["path"] not in self._quiet_paths:
                logger.info(
                    "request ended",
                    extra={
                        "method": scope["method"],
                        "path": _shown_path(scope),
                        "status": status,
                        "key": tenant_of(scope).name,
                        "seconds": round(self._clock.now() - began_at, 4),
                    },
                )


def _shown_path(scope: Scope) -> str:
    """Return the route's pattern: a path that a client invents may be anything, and hold anything."""
    pattern: str = getattr(scope.get("route"), "path", "unmatched")
    return pattern


def _given_id(scope: Scope) -> str | None:
    """Return the id that the client gave, if it can be repeated."""
    for name, value in scope["headers"]:
        if name == _RAW_REQUEST_ID_HEADER:
            text: str = value.decode("latin-1")
            if _GOOD_ID.fullmatch(text):
                return text
            break
    return None
