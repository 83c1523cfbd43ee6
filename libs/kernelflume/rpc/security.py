"""Credentials of gRPC servers and channels, and the bearer token that a server may ask for."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
from grpc_health.v1 import health

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    from kernelflume.runtime.tls import TlsFiles, TlsMaterial

AUTHORIZATION_KEY = "authorization"
_REFUSAL = "a valid token is required"
_OPEN_PREFIX = f"/{health.SERVICE_NAME}/"
"""Probes of orchestrators bring no token."""
_LOOPBACK_NAMES = frozenset({"localhost", "::1", "[::1]"})


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials | None:
    """Return what a server listens with, or None when it has no certificate of its own.

    Each new connection sees the files as they are then.
    """
    used = files.look()
    if used.certificate is None:
        return None

    def configuration() -> grpc.ServerCertificateConfiguration | None:
        """Return the files' configuration if they have changed; gRPC asks at each handshake."""
        nonlocal used
        present = files.look()
        if present is used:
            return None
        used = present
        return _configuration(present)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(used),
        configuration,  # type: ignore[arg-type]  # gRPC takes None for no change, its stubs do not say so
        require_client_authentication=used.require_client_certificate,
    )


def _configuration(tls: TlsMaterial) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(tls.key or b"", tls.certificate or b"")],  # a certificate is there, and settings want both
        root_certificates=tls.ca if tls.require_client_certificate else None,
    )


def channel_credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """Return what a channel calls with: the files as they are now."""
    tls = files.look()
    return grpc.ssl_channel_credentials(
        root_certificates=tls.ca, private_key=tls.key, certificate_chain=tls.certificate
    )


def is_loopback(address: str) -> bool:
    """Return whether nothing outside this machine reaches ``address`` (host:port, or unix:path)."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = address.rpartition(":")[0]
    return host in _LOOPBACK_NAMES or host.startswith("127.")


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without the right bearer token; health checks need none."""

    def __init__(self, token: str, methods: Collection[str] | None = None) -> None:
        """Guard ``methods`` ("/package.Service/Method"), or with None everything, known or not."""
        self._expected = f"Bearer {token}".encode()
        self._methods = None if methods is None else frozenset(methods)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Let the call through, or answer it with UNAUTHENTICATED, whether there is such a method or not."""
        handler = await continuation(handler_call_details)
        if self._needs_none(handler_call_details.method) or self._is_right(
            handler_call_details.invocation_metadata
        ):
            return handler
        return _refuse_like(handler)

    def _needs_none(self, method: str) -> bool:
        if self._methods is not None:
            return method not in self._methods
        return method.startswith(_OPEN_PREFIX)

    def _is_right(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> bool:
        given = [value for key, value in metadata or () if key == AUTHORIZATION_KEY]
        if len(given) != 1:
            return False
        [value] = given
        return hmac.compare_digest(value.encode() if isinstance(value, str) else value, self._expected)


def _refuse_like(handler: Any) -> Any:
    """Return a handler of the same kind of call that refuses it."""

    async def refuse(_: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, _REFUSAL)

    async def refuse_stream(_: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, _REFUSAL)
        yield b""  # never reached: it makes this a stream

    if handler is None or not (handler.request_streaming or handler.response_streaming):
        return grpc.unary_unary_rpc_method_handler(refuse)
    if not handler.request_streaming:
        return grpc.unary_stream_rpc_method_handler(refuse_stream)
    if not handler.response_streaming:
        return grpc.stream_unary_rpc_method_handler(refuse)
    return grpc.stream_stream_rpc_method_handler(refuse_stream)


class _Details(NamedTuple):
    """Call details with other metadata; gRPC has no public class of its own for plain threads."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: Any
    compression: Any


class BlockingToken(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Adds the token to each call of a channel for plain threads."""

    def __init__(self, token: str) -> None:
        self._header = (AUTHORIZATION_KEY, f"Bearer {token}")

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """Pass the call on with the token."""
        return continuation(self._with_token(client_call_details), request)

    def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """Pass the call on with the token."""
        return continuation(self._with_token(client_call_details), request)

    def _with_token(self, details: Any) -> _Details:
        return _Details(
            details.method,
            details.timeout,
            (*(details.metadata or ()), self._header),
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )


class AsyncToken(grpc.aio.UnaryUnaryClientInterceptor):
    """Adds the token to each unary call of a channel of an event loop."""

    def __init__(self, token: str) -> None:
        self._header = (AUTHORIZATION_KEY, f"Bearer {token}")

    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """Pass the call on with the token."""
        return await continuation(_with_header(client_call_details, self._header), request)


class AsyncStreamToken(grpc.aio.UnaryStreamClientInterceptor):
    """Adds the token to each stream of a channel of an event loop."""

    def __init__(self, token: str) -> None:
        self._header = (AUTHORIZATION_KEY, f"Bearer {token}")

    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        """Pass the call on with the token."""
        return await continuation(_with_header(client_call_details, self._header), request)


def _with_header(details: Any, header: tuple[str, str]) -> Any:
    return details._replace(metadata=grpc.aio.Metadata(*(details.metadata or ()), header))
