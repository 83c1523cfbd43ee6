from __future__ import annotations

import pytest

from kernelflume.core import errors
from kernelflume.router.errors import (
    BodyTimeoutError,
    BodyTooLargeError,
    ContextLengthError,
    ModelNotFoundError,
    api_error_of,
    http_error,
)


@pytest.mark.parametrize(
    ("error", "status", "kind", "code", "param"),
    [
        (
            ContextLengthError("x", parameter="max_tokens"),
            400,
            "invalid_request_error",
            "context_length_exceeded",
            "max_tokens",
        ),
        (errors.InvalidRequestError("x", parameter="n"), 400, "invalid_request_error", None, "n"),
        (BodyTooLargeError("x"), 413, "invalid_request_error", "request_too_large", None),
        (BodyTimeoutError("x"), 408, "invalid_request_error", "request_timeout", None),
        (ModelNotFoundError("x"), 404, "invalid_request_error", "model_not_found", "model"),
        (errors.OverloadedError("x"), 429, "rate_limit_error", "overloaded", None),
        (errors.UnavailableError("x"), 503, "service_unavailable_error", "unavailable", None),
        (errors.PeerLostError("a", "b"), 503, "service_unavailable_error", "unavailable", None),
        (errors.DeadlineError("x"), 504, "timeout_error", "timeout", None),
        (errors.LifecycleError("x"), 503, "service_unavailable_error", "unavailable", None),
    ],
)
def test_every_foreseen_error_has_its_status(
    error: Exception, status: int, kind: str, code: str | None, param: str | None
) -> None:
    found = api_error_of(error)
    assert (found.status, found.type, found.code, found.param) == (status, kind, code, param)
    assert found.body()["error"]["message"] == str(error)


def test_an_unforeseen_error_says_nothing_of_our_insides() -> None:
    found = api_error_of(RuntimeError("secret path"))
    assert found.status == 500
    assert "secret" not in found.to_json()


def test_retry_after_is_whole_seconds_and_at_least_one() -> None:
    assert api_error_of(errors.OverloadedError("x", retry_after_s=0.2)).headers() == {"Retry-After": "1"}
    assert api_error_of(errors.OverloadedError("x", retry_after_s=2.1)).headers() == {"Retry-After": "3"}
    assert api_error_of(errors.InvalidRequestError("x")).headers() == {}


def test_http_failures() -> None:
    assert http_error(404, "Not Found").body()["error"]["code"] == "not_found"
    assert http_error(405, "Method Not Allowed").type == "invalid_request_error"
