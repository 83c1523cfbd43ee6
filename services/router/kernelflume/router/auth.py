"""Who may ask: ASGI middleware that takes OpenAI's `Authorization: Bearer` header to the key it carries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse

from kernelflume.core.errors import KernelFlumeError, UnauthenticatedError
from kernelflume.router.body import discard_body
from kernelflume.router.errors import api_error_of
from kernelflume.router.tenants import Tenant

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Receive, Scope, Send

    from kernelflume.core.apikeys import KeyLimits
    from kernelflume.router.keysource import Keys
    from kernelflume.router.metrics import RouterMetrics

_AUTHORIZATION = b"authorization"
_SCHEME = b"bearer "
_DISCARD_TIMEOUT_S = 2.0


class Authentication:
    """Lets requests through that carry a key, and those to paths that are open."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Keys,
        open_paths: Collection[str],
        open_files: Collection[str],
        default_limits: KeyLimits,
        metrics: RouterMetrics,
    ) -> None:
        """Guard an application.

        Args:
            app: what is guarded.
            keys: those in force.
            open_paths: paths that need no key, with everything below them.
            open_files: paths that need none, exactly: what is below them does.
            default_limits: of keys that have none of their own.
            metrics: counts refusals.
        """
        self._app = app
        self._keys = keys
        self._open_paths = frozenset({*open_paths, *open_files})
        self._open_folders = tuple(f"{path.rstrip('/')}/" for path in open_paths)
        self._default_limits = default_limits
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http" and not self._is_open(scope["path"]):
            try:
                tenant = self._authenticate(scope)
            except KernelFlumeError as error:
                await discard_body(Request(scope, receive), timeout_s=_DISCARD_TIMEOUT_S)
                refused = api_error_of(error)
                response = JSONResponse(refused.body(), status_code=refused.status, headers=refused.headers())
                await response(scope, receive, send)
                return
            tenant.attach(scope)
        await self._app(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        return path in self._open_paths or path.startswith(self._open_folders)

    def _authenticate(self, scope: Scope) -> Tenant:
        presented = [value for name, value in scope["headers"] if name == _AUTHORIZATION]
        if not presented:
            self._metrics.unauthenticated.labels("no_key").inc()
            raise UnauthenticatedError(
                "You didn't provide an API key. Provide it in an Authorization header using Bearer auth "
                "(Authorization: Bearer YOUR_KEY)."
            )
        [first, *more] = presented
        # Never shown, not even in part: what was presented may be the key of another service.
        if not more and first[: len(_SCHEME)].lower() == _SCHEME:
            key = self._keys.find(first[len(_SCHEME) :].strip().decode("latin-1"))
            if key is not None:
                return Tenant.of_key(key, self._default_limits)
        self._metrics.unauthenticated.labels("bad_key").inc()
        raise UnauthenticatedError("Incorrect API key provided.")
