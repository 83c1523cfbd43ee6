"""A gRPC server with health, reflection and errors mapped to status codes."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from kernelflume.core.errors import ConfigurationError, KernelFlumeError
from kernelflume.rpc.security import TokenInterceptor, is_loopback, server_credentials
from kernelflume.rpc.status import code_of, internal_details, trailers_of
from kernelflume.rpc.tracing import ServiceTracer
from kernelflume.runtime.tracing import NO_TRACER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from kernelflume.runtime.tls import TlsFiles
    from kernelflume.runtime.tracing import Tracer

logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""A prompt of some million token ids fits; more is refused by gRPC itself."""


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Turns a ``KernelFlumeError`` of a handler into its status code, and any other error into INTERNAL."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the handler of the method that is called; None, for a method that is not there, stays None."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                _guard_unary(handler.unary_unary), handler.request_deserializer, handler.response_serializer
            )
        if handler.unary_stream is not None and inspect.isasyncgenfunction(handler.unary_stream):
            return grpc.unary_stream_rpc_method_handler(
                _guard_stream(handler.unary_stream), handler.request_deserializer, handler.response_serializer
            )
        if handler.stream_stream is not None and inspect.iscoroutinefunction(handler.stream_stream):
            return grpc.stream_stream_rpc_method_handler(
                _guard_unary(handler.stream_stream), handler.request_deserializer, handler.response_serializer
            )
        return handler


async def _abort(context: Any, error: Exception) -> None:
    if isinstance(error, KernelFlumeError):
        await context.abort(code_of(error), str(error), trailers_of(error))
    logger.error("unexpected error in a call", exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, internal_details(error))


def _guard_unary(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def guarded(request: Any, context: Any) -> Any:
        try:
            return await method(request, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - the boundary: everything becomes a status
            return await _abort(context, error)

    return guarded


def _guard_stream(method: Callable[..., Any]) -> Callable[..., Any]:
    async def guarded(request: Any, context: Any) -> Any:
        try:
            async for item in method(request, context):
                yield item
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - the boundary: everything becomes a status
            await _abort(context, error)

    return guarded


class Server:
    """One listening gRPC server. Start it, mark it serving when the service can work, stop it at the end."""

    def __init__(
        self,
        address: str,
        service_names: list[str],
        *,
        tls: TlsFiles | None = None,
        token: str | None = None,
        token_methods: Collection[str] | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """Make a server that does not listen yet.

        Args:
            address: host:port to listen on; port 0 takes a free one.
            service_names: full names of the services that reflection and health checks tell of.
            tls: listen with its certificate, as it is at each handshake; plaintext if it has none.
            token: bearer token without which only health checks are answered; None answers everyone.
            token_methods: all that need the token, as "/package.Service/Method"; None: everything does.
            tracer: continues the traces that unary calls bring.
        """
        interceptors: list[grpc.aio.ServerInterceptor] = [ErrorInterceptor()]
        if tracer is not NO_TRACER:
            interceptors.insert(0, ServiceTracer(tracer))
        if token is not None:
            interceptors.insert(0, TokenInterceptor(token, token_methods))
        self._server = grpc.aio.server(
            interceptors=interceptors,
            options=[
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.so_reuseport", 0),
            ],
        )
        self._requested_address = address
        self._credentials = server_credentials(tls) if tls is not None else None
        self._names = service_names
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )
        self.port = 0

    @property
    def grpc_server(self) -> grpc.aio.Server:
        """The server to add servicers to, before ``start``."""
        return self._server

    async def start(self) -> None:
        """Listen; the port is then in ``port``.

        Raises:
            ConfigurationError: the address cannot be listened on.
        """
        address = self._requested_address
        if self._credentials is None and not is_loopback(address):
            logger.warning("gRPC at %s is plaintext and open to other machines; see tls settings", address)
        try:
            if self._credentials is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise ConfigurationError(f"cannot listen on {address}: {error}") from error
        await self.set_serving(serving=False)
        await self._server.start()

    async def set_serving(self, *, serving: bool) -> None:
        """Answer health checks with SERVING or NOT_SERVING, for the whole server and each service."""
        statuses = health_pb2.HealthCheckResponse
        status = statuses.SERVING if serving else statuses.NOT_SERVING
        for name in ("", *self._names):
            await self._health.set(name, status)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls and end the running ones within ``grace_s`` seconds."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)
