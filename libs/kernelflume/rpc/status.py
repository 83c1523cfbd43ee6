"""Errors to gRPC status codes and back, in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from kernelflume.core import errors
from kernelflume.rpc.v1 import wnode_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

RETRY_AFTER_KEY = "retry-after-ms"
PARAMETER_KEY = "invalid-parameter"

_STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}

# Most special first: the first class that fits gives the code.
_CODES: tuple[tuple[type[errors.KernelFlumeError], grpc.StatusCode], ...] = (
    (errors.InvalidRequestError, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.ConfigurationError, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.UnauthenticatedError, grpc.StatusCode.UNAUTHENTICATED),
    (errors.NotFoundError, grpc.StatusCode.NOT_FOUND),
    (errors.OverloadedError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.KvPoolExhaustedError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.UnavailableError, grpc.StatusCode.UNAVAILABLE),
    (errors.DeadlineError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (errors.HandshakeError, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.LifecycleError, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.AlreadyExistsError, grpc.StatusCode.ALREADY_EXISTS),
    (errors.ConflictError, grpc.StatusCode.ABORTED),
)


def code_of(error: errors.KernelFlumeError) -> grpc.StatusCode:
    """Return the status code that stands for ``error``."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)


def trailers_of(error: errors.KernelFlumeError) -> tuple[tuple[str, str], ...]:
    """Return the trailing metadata that carries an error's fields."""
    if isinstance(error, errors.OverloadedError):
        return ((RETRY_AFTER_KEY, str(int(error.retry_after_s * 1000))),)
    if isinstance(error, errors.InvalidRequestError) and error.parameter:
        return ((PARAMETER_KEY, error.parameter),)
    return ()


def error_of(failure: grpc.RpcError) -> errors.KernelFlumeError:
    """Return the error that a failed call stands for."""
    code: grpc.StatusCode = failure.code()
    return _error(code, failure.details() or code.name, dict(_pairs(failure.trailing_metadata())))


def failure_to_proto(error: Exception) -> wnode_pb2.RequestFailure:
    """Encode the failure of a request that has no call of its own, as its call would have failed."""
    if isinstance(error, errors.KernelFlumeError):
        code, details, trailers = code_of(error), str(error), dict(trailers_of(error))
    else:
        code, details, trailers = grpc.StatusCode.INTERNAL, internal_details(error), {}
    return wnode_pb2.RequestFailure(code=code.value[0], details=details, trailers=trailers)


def failure_from_proto(failure: wnode_pb2.RequestFailure) -> errors.KernelFlumeError:
    """Return the error that the failure of a request stands for."""
    code = _STATUS_CODES.get(failure.code, grpc.StatusCode.UNKNOWN)
    return _error(code, failure.details or code.name, failure.trailers)


def internal_details(error: Exception) -> str:
    """Return what a caller is told of an error that nobody expected."""
    return f"internal error: {type(error).__name__}"


def _error(code: grpc.StatusCode, details: str, trailers: Mapping[str, str]) -> errors.KernelFlumeError:
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return errors.InvalidRequestError(details, parameter=trailers.get(PARAMETER_KEY))
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        retry_after_ms = trailers.get(RETRY_AFTER_KEY, "")
        known = retry_after_ms.isascii() and retry_after_ms.isdigit()
        return errors.OverloadedError(details, retry_after_s=int(retry_after_ms) / 1000 if known else 1.0)
    kinds: dict[grpc.StatusCode, type[errors.KernelFlumeError]] = {
        grpc.StatusCode.UNAUTHENTICATED: errors.UnauthenticatedError,
        grpc.StatusCode.NOT_FOUND: errors.NotFoundError,
        grpc.StatusCode.UNAVAILABLE: errors.UnavailableError,
        grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineError,
        grpc.StatusCode.FAILED_PRECONDITION: errors.LifecycleError,
        grpc.StatusCode.ALREADY_EXISTS: errors.AlreadyExistsError,
        grpc.StatusCode.ABORTED: errors.ConflictError,
    }
    return kinds.get(code, errors.KernelFlumeError)(details)


def _pairs(metadata: Iterable[Any] | None) -> list[tuple[str, str]]:
    return [(key, value) for key, value in metadata or () if isinstance(value, str)]
