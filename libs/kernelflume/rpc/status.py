"""Errors to gRPC status codes and back, in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from kernelflume.core import errors

if TYPE_CHECKING:
    from collections.abc import Iterable

RETRY_AFTER_KEY = "retry-after-ms"
PARAMETER_KEY = "invalid-parameter"

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
    details: str = failure.details() or code.name
    trailers = dict(_pairs(failure.trailing_metadata()))
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return errors.InvalidRequestError(details, parameter=trailers.get(PARAMETER_KEY))
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        retry_after_ms = int(trailers.get(RETRY_AFTER_KEY, "1000"))
        return errors.OverloadedError(details, retry_after_s=retry_after_ms / 1000)
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
