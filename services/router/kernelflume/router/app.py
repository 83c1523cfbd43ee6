"""The HTTP application: routes, and errors in OpenAI's shape on every one of them."""

from __future__ import annotations

import logging
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import Request  # noqa: TC002 - FastAPI reads the annotations at run time

from kernelflume.core.errors import KernelFlumeError, UnavailableError
from kernelflume.router.errors import ModelNotFoundError, api_error_of, http_error
from kernelflume.router.openapi import build_document

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from kernelflume.router.admission import Admission
    from kernelflume.router.errors import ApiError
    from kernelflume.router.gateway import Gateway
    from kernelflume.router.intake import Intake
    from kernelflume.router.metrics import RouterMetrics
    from kernelflume.router.tokens import TokenEndpoints

logger = logging.getLogger(__name__)

OWNER = "kernelflume"


def build_app(
    *,
    gateway: Gateway,
    tokens: TokenEndpoints,
    intake: Intake,
    admission: Admission,
    metrics: RouterMetrics,
    model_names: Sequence[str],
) -> FastAPI:
    """Return the application.

    Args:
        gateway: answers the generating endpoints.
        tokens: answers what is asked about tokens.
        intake: knows whether a weight node can serve, and the context length.
        admission: knows whether the router is shutting down.
        metrics: shown at /metrics.
        model_names: names the model is served under.
    """
    release = version("kernelflume")
    app = FastAPI(title="KernelFlume", version=release, redirect_slashes=False)
    created = int(time.time())

    def describe_model(name: str) -> dict[str, Any]:
        try:
            max_model_len: int | None = intake.limits().max_model_len
        except UnavailableError:
            max_model_len = None
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": OWNER,
            "root": model_names[0],
            "parent": None,
            "max_model_len": max_model_len,
        }

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        """Continue a conversation."""
        return await gateway.chat(request)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        """Continue a text."""
        return await gateway.complete(request)

    @app.post("/v1/responses")
    async def responses(request: Request) -> Response:
        """Answer a conversation, which comes with the request: nothing is stored."""
        return await gateway.respond(request)

    @app.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        """Say what tokens a text or a conversation has."""
        return await tokens.tokenize(request)

    @app.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        """Say what text tokens have."""
        return await tokens.detokenize(request)

    @app.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        """List the names the model is served under."""
        return {"object": "list", "data": [describe_model(name) for name in model_names]}

    @app.get("/v1/models/{name:path}")
    async def retrieve_model(name: str) -> dict[str, Any]:
        """Describe one model."""
        if name not in model_names:
            raise ModelNotFoundError(f"The model `{name}` does not exist.")
        return describe_model(name)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Say that the process lives."""
        return {"status": "alive"}

    @app.get("/ready")
    async def ready() -> dict[str, str]:
        """Say whether a request would be served: a weight node answers and can serve."""
        if admission.closed:
            raise UnavailableError("the server is shutting down")
        intake.limits()
        return {"status": "ready"}

    @app.get("/version")
    async def show_version() -> dict[str, str]:
        """Say which release this is."""
        return {"version": release}

    @app.get("/metrics")
    async def show_metrics() -> Response:
        """Show the metrics in Prometheus' text format."""
        return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)

    document: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not document:
            document.update(build_document(app))
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to change its document
    app.add_exception_handler(KernelFlumeError, _answer_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(Exception, _answer_error)
    app.add_middleware(CountResponses, metrics=metrics)
    return app


class CountResponses:
    """ASGI middleware that counts responses by route and status, streams included, and touches nothing."""

    def __init__(self, app: ASGIApp, metrics: RouterMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counting_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                # The route's pattern, known once it was matched: paths that clients invent are one series.
                path = getattr(scope.get("route"), "path", "unmatched")
                self._metrics.http_responses.labels(path, message["status"]).inc()
            await send(message)

        await self._app(scope, receive, counting_send)


async def _answer_error(_: Request, error: Exception) -> Response:
    api_error = api_error_of(error)
    if api_error.status == 500:
        logger.error("a request failed", exc_info=error)
    return _respond(api_error)


async def _answer_http_error(_: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise TypeError("registered for HTTPException only")
    response = _respond(http_error(error.status_code, str(error.detail)))
    response.headers.update(error.headers or {})
    return response


def _respond(error: ApiError) -> Response:
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers())
