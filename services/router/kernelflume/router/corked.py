"""A transport that sends what is written in one turn of the event loop in one piece.

A server writes an answer's head, its first frame and its end one by one; each would be a system call here,
and a packet on the way.
"""

from __future__ import annotations

import asyncio
from typing import Any


class CorkedTransport(asyncio.Transport):
    """Wraps another transport, whose protocol goes on to be told of everything."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._pieces: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send data when this turn of the event loop ends."""
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces.append(bytes(data))

    def close(self) -> None:
        """Close once all was sent."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._pieces.clear()
        self._transport.abort()

    def is_closing(self) -> bool:
        """Tell whether it is closed, or will be."""
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the wrapped transport knows."""
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Take nothing in."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take in again."""
        self._transport.resume_reading()

    def is_reading(self) -> bool:
        """Tell whether anything is taken in."""
        return self._transport.is_reading()

    def get_write_buffer_size(self) -> int:
        """Return the bytes that are not sent yet."""
        return sum(map(len, self._pieces)) + self._transport.get_write_buffer_size()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand over to another protocol."""
        self._transport.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        return self._transport.get_protocol()

    def _flush(self) -> None:
        if self._pieces:
            data = b"".join(self._pieces) if len(self._pieces) > 1 else self._pieces[0]
            self._pieces.clear()
            if not self._transport.is_closing():
                self._transport.write(data)
