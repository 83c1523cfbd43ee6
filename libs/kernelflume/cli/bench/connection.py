"""HTTP/1.1 over a socket, one exchange at a time: parsed by httptools, and nothing more for each token."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

import httptools

from kernelflume.core.errors import UnavailableError

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

_READ_BYTES = 64 * 1024
_MAX_HEAD_BYTES = 256 * 1024


class HttpConnection:
    """One connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._head_done = False
        self._message_done = False
        self._keeps_alive = False
        self._num_head_bytes = 0
        self._is_delimited = False
        self.headers: dict[str, str] = {}
        """Of the answer, names in lower case."""
        self.answer_began = False
        """Whether a byte of the answer has come."""

    @classmethod
    async def open(cls, host: str, port: int, context: ssl.SSLContext | None) -> Self:
        """Connect.

        Raises:
            OSError: nothing listens there, or TLS failed.
        """
        return cls(*await asyncio.open_connection(host, port, ssl=context))

    @property
    def reusable(self) -> bool:
        """True when another exchange may follow on this connection."""
        return self._keeps_alive and not self._reader.at_eof()

    async def send(self, head: bytes, body: bytes) -> int:
        """Send a request and return the status of the answer, once its head is there.

        Raises:
            OSError: the connection broke.
            UnavailableError: the server closed it, or what it says is no HTTP.
        """
        self._begin()
        self._writer.write(head + body)
        await self._writer.drain()
        while not self._head_done:
            if not await self._read():
                raise UnavailableError("the server closed the connection without an answer")
        return int(self._parser.get_status_code())

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the answer's body as it comes.

        Raises:
            OSError: the connection broke.
            UnavailableError: it was closed in the midst of the body.
        """
        while True:
            if self._body:
                yield b"".join(self._body)
                self._body.clear()
            if self._message_done:
                return
            if not await self._read() and not self._message_done:
                if self._is_delimited:
                    raise UnavailableError("the server closed the connection within its answer")
                return

    def close(self) -> None:
        """Close it."""
        self._writer.close()

    async def _read(self) -> bool:
        """Read what has come; False at the end."""
        data = await self._reader.read(_READ_BYTES)
        if not data:
            return False
        self.answer_began = True
        if not self._head_done:
            self._num_head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise UnavailableError(f"the answer is no HTTP: {error}") from error
        if not self._head_done and self._num_head_bytes > _MAX_HEAD_BYTES:
            raise UnavailableError("the head of the answer has no end")
        return True

    # What httptools calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header of the answer."""
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Begin the body, unless this was an interim answer."""
        if self._parser.get_status_code() >= 200:
            self._head_done = True
            self._is_delimited = bool({"content-length", "transfer-encoding"} & self.headers.keys())

    def on_body(self, data: bytes) -> None:
        """Keep a part of the body."""
        self._body.append(data)

    def on_message_complete(self) -> None:
        """End the answer, unless it was an interim one."""
        self._message_done = self._head_done
        self._keeps_alive = self._message_done and self._parser.should_keep_alive()
