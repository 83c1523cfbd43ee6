"""Client channels to the other services."""

from __future__ import annotations

import grpc

from kernelflume.rpc.server import MAX_MESSAGE_BYTES

_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]


def open_channel(address: str) -> grpc.aio.Channel:
    """Open a channel for the running event loop; connecting happens at the first call."""
    return grpc.aio.insecure_channel(address, options=_OPTIONS)


def open_blocking_channel(address: str) -> grpc.Channel:
    """Open a channel for plain threads, such as the command line."""
    return grpc.insecure_channel(address, options=_OPTIONS)
