"""HTTP connections that cannot be held open for nothing: bounds on their number, and on a request's head."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from kernelflume.router.corked import CorkedTransport
from kernelflume.router.errors import http_error

if TYPE_CHECKING:
    import asyncio


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionBounds:
    """What one client may do to the server before its request is known."""

    max_connections: int
    head_timeout_s: float
    """Time from the first byte of a request, or from the connection's start, to the end of its headers."""
    max_head_bytes: int
    """Bytes of a request line and headers that come in pieces; one read of the socket may bring more."""


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 connection with these bounds, and with errors of its own in OpenAI's shape."""

    bounds: ClassVar[ConnectionBounds]

    _head_timer: asyncio.TimerHandle | None = None
    """There from the first moment at which a head is due until it is complete."""
    _num_head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Begin, or refuse one connection too many."""
        super().connection_made(CorkedTransport(transport, self.loop))
        if len(self.connections) > self.bounds.max_connections:
            self._refuse(503, "too many connections are open")
        else:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._head_is_complete()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take in bytes."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._head_timer is not None:
            self._num_head_bytes += len(data)
            if self._num_head_bytes > self.bounds.max_head_bytes:
                self._refuse(431, f"the request's headers have more than {self.bounds.max_head_bytes} bytes")

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        if self._head_timer is None:
            self._expect_head()

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        self._head_is_complete()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP."""
        self._refuse(400, msg)

    def _expect_head(self) -> None:
        self._num_head_bytes = 0
        self._head_timer = self.loop.call_later(self.bounds.head_timeout_s, self._head_is_late)

    def _head_is_complete(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._refuse(408, f"no complete request came within {self.bounds.head_timeout_s:g} s")

    def _refuse(self, status: int, message: str) -> None:
        self._head_is_complete()
        if self._may_answer():
            body = json.dumps(http_error(status, message).body()).encode()
            head = (
                f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(STATUS_LINE[status] + head.encode() + body)
        self.transport.close()

    def _may_answer(self) -> bool:
        """Tell whether an answer of our own would be taken for that of the request that is at fault."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return True
        # Between the frames of a running answer it would be noise, and before it another request's answer;
        # but a request whose body is at fault waits for that answer.
        return cycle.more_body and not cycle.response_started and not self.pipeline


def connection_class(bounds: ConnectionBounds) -> type[BoundedConnection]:
    """Return the class of connections with these bounds, as uvicorn wants it."""
    return type("Connection", (BoundedConnection,), {"bounds": bounds})
