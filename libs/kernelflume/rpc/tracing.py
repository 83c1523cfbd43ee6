"""Traces across gRPC: unary calls made under a span get a span of their own on both sides.

Streams of tokens have no interceptor: whoever makes or serves one carries the trace itself, so that the path
of a token stays as it is.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health

from kernelflume.runtime.tracing import CURRENT_SPAN, SpanKind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kernelflume.runtime.tracing import Attributes, Span, Tracer

_PARENT_KEY = "traceparent"


class CallTracer(grpc.aio.UnaryUnaryClientInterceptor):
    """Gives each unary call to ``address`` a span under the current one, if that one is recorded."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """Make the call within its span."""
        parent = CURRENT_SPAN.get()()
        # Whoever waits for a server to come up asks its health many times a second.
        if not parent.recording or _is_health_check(client_call_details.method):
            return await continuation(client_call_details, request)
        attributes = {"server.address": self._address, **_rpc_attributes(client_call_details.method)}
        span = parent.child(str(attributes["rpc.method"]), kind=SpanKind.CLIENT, attributes=attributes)
        metadata = grpc.aio.Metadata(*(client_call_details.metadata or ()), *span.headers())
        try:
            call = await continuation(client_call_details._replace(metadata=metadata), request)
            await _see_through(call, span)
        finally:
            span.end()
        return call


class ServiceTracer(grpc.aio.ServerInterceptor):
    """Continues the traces that unary calls bring; calls without one get none."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the handler of a call that brings a trace."""
        handler = await continuation(handler_call_details)
        headers: Any = handler_call_details.invocation_metadata or ()
        brings_trace = any(key == _PARENT_KEY for key, _ in headers)
        if handler is None or handler.unary_unary is None or not brings_trace:
            return handler
        attributes = _rpc_attributes(handler_call_details.method)
        method = handler.unary_unary

        async def traced(request: Any, context: Any) -> Any:
            span = self._tracer.start(
                str(attributes["rpc.method"]), kind=SpanKind.SERVER, headers=headers, attributes=attributes
            )
            # The call has a task of its own: what it calls belongs to this span, and nothing else does.
            CURRENT_SPAN.set(lambda: span)
            try:
                return await method(request, context)
            except grpc.aio.AbortError:
                _fail(span, context.code(), context.details())
                raise
            finally:
                span.end()

        return grpc.unary_unary_rpc_method_handler(
            traced, handler.request_deserializer, handler.response_serializer
        )


async def _see_through(call: Any, span: Span) -> None:
    """Wait for the end of a unary call, whatever it is, and note a failure."""
    try:
        code = await call.code()
    except asyncio.CancelledError:
        call.cancel()
        _fail(span, grpc.StatusCode.CANCELLED, "")
        raise
    if code is not grpc.StatusCode.OK:
        _fail(span, code, await call.details())


def _fail(span: Span, code: Any, details: Any) -> None:
    name = getattr(code, "name", str(code))
    span.set({"rpc.grpc.status": name})
    span.fail(f"{name}: {details}" if details else name)


def _is_health_check(method: str | bytes) -> bool:
    return bool(_parts(method)[0] == health.SERVICE_NAME)


def _rpc_attributes(method: str | bytes) -> Attributes:
    service, name = _parts(method)
    return {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}


def _parts(method: str | bytes) -> tuple[str, str]:
    """Return service and name of /service/name."""
    path = method.decode() if isinstance(method, bytes) else method
    service, _, name = path.removeprefix("/").partition("/")
    return service, name
