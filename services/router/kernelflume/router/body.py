"""Reading a request's body: bounded in bytes and in time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kernelflume.core.errors import InvalidRequestError
from kernelflume.router.bodyroom import SMALL_BODY_BYTES
from kernelflume.router.errors import BodyTimeoutError, BodyTooLargeError, ClientGoneError

if TYPE_CHECKING:
    from starlette.requests import Request

    from kernelflume.router.bodyroom import BodyPlace

_MAX_DISCARDED_BYTES = 64 * 1024 * 1024


async def read_json_body(request: Request, place: BodyPlace, *, max_bytes: int, timeout_s: float) -> bytes:
    """Return the body of a request that says it is JSON.

    Args:
        request: whose body was not read yet.
        place: takes the room that it needs.
        max_bytes: most bytes it may have.
        timeout_s: longest time until it is there, with the wait for room.

    Raises:
        InvalidRequestError: its content type is another one, or it is compressed.
        OverloadedError: there was no room for it in time.
        BodyTooLargeError: it has more than ``max_bytes`` bytes.
        BodyTimeoutError: it was not complete in time.
        ClientGoneError: the client went away before its end.
    """
    try:
        async with asyncio.timeout(timeout_s):
            body = await _read(request, max_bytes, place)
    except TimeoutError:
        refusal = place.refusal()
        if refusal is not None:
            await discard_body(request, timeout_s=timeout_s)
            raise refusal from None
        raise BodyTimeoutError(f"the request's body did not arrive within {timeout_s:g} s") from None
    if body is None:
        raise BodyTooLargeError(f"the request's body has more than {max_bytes} bytes")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise InvalidRequestError(f"content encoding {coding!r:.40} is not supported, only 'identity'")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise InvalidRequestError(f"content type {kind!r} is not supported, only 'application/json'")
    return body


async def discard_body(request: Request, *, timeout_s: float) -> None:
    """Take a body that nobody reads, as far as is reasonable.

    A server that closes a connection with unread bytes resets it, and the client then may never see the
    answer that says what was wrong.
    """
    try:
        async with asyncio.timeout(timeout_s):
            await _read(request, 0)
    except (TimeoutError, ClientGoneError):
        return


async def _read(request: Request, max_bytes: int, place: BodyPlace | None = None) -> bytes | None:
    """Return the body, or None if it is too large; then the rest of it has been taken too."""
    declared = request.headers.get("content-length", "")
    expected = int(declared) if declared.isdecimal() else max_bytes
    if expected > max_bytes:
        place, max_bytes = None, 0  # it will not be kept
    chunks: list[bytes] = []
    num_bytes = 0
    more = True
    while more and num_bytes <= max(max_bytes, _MAX_DISCARDED_BYTES):
        message = await request.receive()
        if message["type"] != "http.request":
            raise ClientGoneError("the client went away before its request was complete")
        chunk: bytes = message.get("body", b"")
        more = message.get("more_body", False)
        num_bytes += len(chunk)
        if place is not None and num_bytes > SMALL_BODY_BYTES:
            await place.need(expected)
        if num_bytes <= max_bytes:
            chunks.append(chunk)
        else:
            chunks.clear()
    return None if num_bytes > max_bytes else b"".join(chunks)
