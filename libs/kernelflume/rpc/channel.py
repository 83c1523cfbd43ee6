"""Client channels to the other services."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc

from kernelflume.rpc.security import AsyncStreamToken, AsyncToken, BlockingToken, channel_credentials
from kernelflume.rpc.server import MAX_MESSAGE_BYTES
from kernelflume.rpc.tracing import CallTracer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernelflume.runtime.tls import TlsFiles

_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """How this process calls other services: opens channels that all are secured alike."""

    tls: TlsFiles | None = None
    """None speaks plaintext. A channel keeps what the files held when it was opened."""
    token: str | None = field(default=None, repr=False)
    """Bearer token sent with each call of one request, answered by one message or by a stream."""
    traced: bool = False
    """Unary calls of an event loop get spans and carry them on."""

    def open(self, address: str) -> grpc.aio.Channel:
        """Open a channel for the running event loop; connecting happens at the first call."""
        interceptors: list[grpc.aio.ClientInterceptor] = []
        if self.traced:
            interceptors.append(CallTracer(address))
        if self.token is not None:
            interceptors += [AsyncToken(self.token), AsyncStreamToken(self.token)]
        if self.tls is None:
            return grpc.aio.insecure_channel(address, options=self._options(), interceptors=interceptors)
        return grpc.aio.secure_channel(
            address, channel_credentials(self.tls), options=self._options(), interceptors=interceptors
        )

    def open_blocking(self, address: str) -> grpc.Channel:
        """Open a channel for plain threads, such as the command line."""
        if self.tls is None:
            channel = grpc.insecure_channel(address, options=self._options())
        else:
            channel = grpc.secure_channel(address, channel_credentials(self.tls), options=self._options())
        return channel if self.token is None else grpc.intercept_channel(channel, BlockingToken(self.token))

    def _options(self) -> Sequence[tuple[str, Any]]:
        server_name = self.tls.look().server_name if self.tls is not None else ""
        return (*_OPTIONS, ("grpc.ssl_target_name_override", server_name)) if server_name else _OPTIONS


PLAINTEXT = Channels()
"""Channels without any security, for one machine."""


def open_channel(address: str) -> grpc.aio.Channel:
    """Open a plaintext channel for the running event loop; connecting happens at the first call."""
    return PLAINTEXT.open(address)


def open_blocking_channel(address: str) -> grpc.Channel:
    """Open a plaintext channel for plain threads."""
    return PLAINTEXT.open_blocking(address)
