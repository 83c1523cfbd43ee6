"""Every error as an OpenAI error object with its HTTP status."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from kernelflume.core import errors


class ModelNotFoundError(errors.NotFoundError):
    """The request names a model that is not served here."""


class ContextLengthError(errors.InvalidRequestError):
    """Prompt and requested tokens do not fit the model's context."""


class BodyTooLargeError(errors.InvalidRequestError):
    """The request's body has more bytes than are accepted."""


class BodyTimeoutError(errors.DeadlineError):
    """The request's body did not arrive in time."""


class RateLimitedError(errors.OverloadedError):
    """A key has used up what it may; ``code`` says what."""

    def __init__(self, message: str, *, code: str, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.code = code


class ClientGoneError(errors.KernelFlumeError):
    """The client closed its connection; nobody reads what is answered."""


@dataclass(frozen=True, slots=True)
class ApiError:
    """What a client is told of a failure."""

    status: int
    message: str
    type: str
    code: str | None = None
    param: str | None = None
    retry_after_s: float | None = None

    def body(self) -> dict[str, Any]:
        """Return OpenAI's error object."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def to_json(self) -> str:
        """Return the body as JSON."""
        return json.dumps(self.body(), ensure_ascii=False)

    def headers(self) -> dict[str, str]:
        """Return the headers that belong to the answer."""
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        if self.retry_after_s is None:
            return {}
        return {"Retry-After": str(max(1, math.ceil(self.retry_after_s)))}


def api_error_of(error: Exception) -> ApiError:
    """Return what a client is told of ``error``; an error nobody foresaw says nothing of our insides."""
    match error:
        case ContextLengthError():
            return ApiError(
                400, str(error), "invalid_request_error", "context_length_exceeded", error.parameter
            )
        case BodyTooLargeError():
            return ApiError(413, str(error), "invalid_request_error", "request_too_large")
        case BodyTimeoutError():
            return ApiError(408, str(error), "invalid_request_error", "request_timeout")
        case errors.InvalidRequestError():
            return ApiError(400, str(error), "invalid_request_error", None, error.parameter)
        case ModelNotFoundError():
            return ApiError(404, str(error), "invalid_request_error", "model_not_found", "model")
        case errors.NotFoundError():
            return ApiError(404, str(error), "invalid_request_error", "not_found")
        case errors.UnauthenticatedError():
            return ApiError(401, str(error), "invalid_request_error", "invalid_api_key")
        case RateLimitedError():
            return ApiError(
                429, str(error), "rate_limit_error", error.code, retry_after_s=error.retry_after_s
            )
        case errors.OverloadedError():
            return ApiError(
                429, str(error), "rate_limit_error", "overloaded", retry_after_s=error.retry_after_s
            )
        case errors.DeadlineError():
            return ApiError(504, str(error), "timeout_error", "timeout")
        case errors.UnavailableError() | errors.LifecycleError() | errors.ConflictError():
            return ApiError(503, str(error), "service_unavailable_error", "unavailable", retry_after_s=1.0)
        case ClientGoneError():
            return ApiError(499, str(error), "client_closed_request", "client_closed_request")
    return ApiError(500, "The server had an error while processing the request.", "server_error", "internal")


def http_error(status: int, message: str) -> ApiError:
    """Return the error object for a failure of HTTP itself: an unknown path, a method not allowed."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    codes = {404: "not_found", 405: "method_not_allowed"}
    return ApiError(status, message, kind, codes.get(status))
