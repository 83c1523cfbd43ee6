"""Reading a request's body: bounded in bytes and in time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kernelflume.core.errors import InvalidRequestError, OverloadedError
from kernelflume.router.bodyroom import SMALL_BODY_BYTES
from kernelflume.router.eager import within
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
        timeout_s: longest time until it is there, the wait for room included, or until it is refused.

    Raises:
        InvalidRequestError: its content type is another one, or it is compressed.
        OverloadedError: there was no room for it.
        BodyTooLargeError: it has more than ``max_bytes`` bytes.
        BodyTimeoutError: it was not complete in time.
        ClientGoneError: the client went away before its end.
    """
    incoming = _IncomingBody(request)
    try:
        body = await within(timeout_s, incoming.read_or_refuse(max_bytes, place))
    except TimeoutError:
        if incoming.refusal is None:
            raise BodyTimeoutError(f"the request's body did not arrive within {timeout_s:g} s") from None
    if incoming.refusal is not None:
        raise incoming.refusal
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
            await _IncomingBody(request).discard()
    except (TimeoutError, ClientGoneError):
        return


class _IncomingBody:
    """A body as it comes."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._num_bytes = 0
        self._is_complete = False
        self.refusal: OverloadedError | None = None
        """Why it was not read, once that is known."""

    async def read_or_refuse(self, max_bytes: int, place: BodyPlace) -> bytes | None:
        """Return it, or None if it is too large or refused; then the rest of it has been taken too."""
        try:
            return await self.read(max_bytes, place)
        except OverloadedError as error:
            self.refusal = error
            await self.discard()
            return None

    async def read(self, max_bytes: int, place: BodyPlace) -> bytes | None:
        """Return it, or None if it is too large; then the rest of it has been taken too."""
        declared = self._request.headers.get("content-length", "")
        expected = int(declared) if declared.isdecimal() else max_bytes
        if expected > max_bytes:
            await self.discard()
            return None
        chunks: list[bytes] = []
        while not self._is_complete:
            chunks.append(await self._next())
            if self._num_bytes > max_bytes:
                chunks.clear()
                await self.discard()
                return None
            if self._num_bytes > SMALL_BODY_BYTES:
                await place.need(expected)
        return b"".join(chunks)

    async def discard(self) -> None:
        """Take what is still to come, as far as is reasonable; once all is there nothing is waited for."""
        while not self._is_complete and self._num_bytes <= _MAX_DISCARDED_BYTES:
            await self._next()

    async def _next(self) -> bytes:
        message = await self._request.receive()
        if message["type"] != "http.request":
            raise ClientGoneError("the client went away before its request was complete")
        chunk: bytes = message.get("body", b"")
        self._is_complete = not message.get("more_body", False)
        self._num_bytes += len(chunk)
        return chunk
