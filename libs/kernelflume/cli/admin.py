"""Calls to the scaler's admin API from the command line."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc

from kernelflume.core.errors import DeadlineError, KernelFlumeError, UnauthenticatedError, UnavailableError
from kernelflume.rpc.channel import PLAINTEXT, Channels
from kernelflume.rpc.status import error_of
from kernelflume.rpc.v1 import scaler_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CALL_TIMEOUT_S = 10.0
"""Bound of a call that does not wait for anything."""
_CONNECT_TIMEOUT_S = 1.0
_NO_ANSWER = "Deadline Exceeded"
"""What gRPC itself says when a call's time is over; deadlines of the scaler's own work have more to say."""


@contextmanager
def scaler_admin(address: str, channels: Channels = PLAINTEXT) -> Iterator[scaler_pb2_grpc.ScalerAdminStub]:
    """Give a stub of the scaler at ``address`` and turn its failures into the product's errors.

    Raises:
        UnavailableError: nothing answers there, or the scaler itself lacks something, such as the store.
        UnauthenticatedError: the scaler wants a token, and the right one was not given.
        KernelFlumeError: the scaler refused.
    """
    with channels.open_blocking(address) as channel:
        try:
            yield scaler_pb2_grpc.ScalerAdminStub(channel)
        except grpc.RpcError as failure:
            raise explained(error_of(failure), address, channels, lambda: _is_connected(channel)) from failure


def explained(
    error: KernelFlumeError, address: str, channels: Channels, is_connected: Callable[[], bool]
) -> KernelFlumeError:
    """Return an error of a call to the scaler with what a person can do about it.

    Args:
        error: as the call ended.
        address: of the scaler.
        channels: how it was called.
        is_connected: whether a server is there; asked only where that matters.
    """
    if isinstance(error, UnavailableError) and not is_connected():
        return UnavailableError(_advice(address, channels, error))
    if isinstance(error, DeadlineError) and str(error) == _NO_ANSWER:
        return DeadlineError(f"the scaler at {address} did not answer in time: it may hang")
    if isinstance(error, UnauthenticatedError):
        return UnauthenticatedError(f"the scaler at {address}: {error} (--token-file)")
    return error


def _is_connected(channel: grpc.Channel) -> bool:
    """True when a server is there: then what is unavailable is something that it needs."""
    try:
        grpc.channel_ready_future(channel).result(timeout=_CONNECT_TIMEOUT_S)
    except grpc.FutureTimeoutError:
        return False
    return True


def _advice(address: str, channels: Channels, error: UnavailableError) -> str:
    if channels.tls is not None:
        # A failed handshake looks like a server that is not there; only the details tell them apart.
        return f"no scaler answers at {address} over TLS (--tls-ca, --tls-certificate, --tls-key): {error}"
    return (
        f"no scaler answers at {address}; is the stack running (kernelflume serve), "
        "does its scaler listen elsewhere (--scaler), or does it want TLS (--tls-ca)?"
    )
