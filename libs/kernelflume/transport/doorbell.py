"""A hint that something was posted, so that a waiter can sleep in the kernel instead of spinning.

The transport has no file descriptor to wait on. Where cores are few, a poller that spins takes the core
that the work needs, and one that sleeps for a fixed time adds that time to every layer. A doorbell is one
datagram beside a post: a waiter blocks until it rings and polls then. It carries nothing, and a lost one
only costs the waiter its time-out.

It also tells early that a peer's process is gone: its port is closed with it, and the next ring is refused.
"""

from __future__ import annotations

import select
import socket

from kernelflume.core.errors import ConfigurationError, HandshakeError


class Doorbell:
    """One node's bell, and the line to others' bells."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.bind((host, 0))
        except OSError as error:
            self._socket.close()
            raise ConfigurationError(f"doorbell: cannot bind {host}: {error}") from error
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._lines: dict[str, socket.socket] = {}
        self.is_watched_ready = False
        """True when the last ``wait`` saw a watched descriptor readable."""

    @property
    def address(self) -> str:
        """host:port that others ring."""
        host, port = self._socket.getsockname()
        return f"{host}:{port}"

    def watch(self, file_descriptor: int) -> None:
        """Make ``wait`` return when this descriptor is readable too, such as a control pipe."""
        self._poll.register(file_descriptor, select.POLLIN)

    def connect(self, peer: str, address: str) -> None:
        """Open the line to a peer's bell, replacing an earlier one.

        Raises:
            HandshakeError: the address cannot be used.
        """
        self.disconnect(peer)
        line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            line.connect(parse_address(address))
        except (OSError, ValueError) as error:
            line.close()
            raise HandshakeError(f"doorbell address {address!r} of {peer} cannot be used: {error}") from error
        line.setblocking(False)
        self._lines[peer] = line

    def disconnect(self, peer: str) -> None:
        """Close the line to a peer's bell, if there is one."""
        line = self._lines.pop(peer, None)
        if line is not None:
            line.close()

    def ring_peer(self, peer: str) -> bool:
        """Ring a connected peer; False when its port was found closed, that is, its process is gone.

        A peer without a line counts as rung, and so does one that could not be rung for another reason.
        """
        line = self._lines.get(peer)
        if line is None:
            return True
        try:
            line.send(b"\0")
        except ConnectionRefusedError:
            return False
        except OSError:  # a hint may be lost
            return True
        return True

    def ring(self, target: tuple[str, int]) -> None:
        """Ring a bell by its address; never blocks and never fails, for a hint may be lost."""
        try:
            self._socket.sendto(b"\0", target)
        except OSError:
            return

    def wait(self, timeout_s: float) -> bool:
        """Block until the bell rings, a watched descriptor is readable, or the time is up; True if either."""
        ready = [descriptor for descriptor, _ in self._poll.poll(timeout_s * 1000)]
        self.is_watched_ready = any(descriptor != self._socket.fileno() for descriptor in ready)
        if self._socket.fileno() in ready:
            self._drain()
        return bool(ready)

    def _drain(self) -> None:
        try:
            while True:
                self._socket.recv(64)
        except OSError:  # nothing left, or a peer's port unreachable: either way the bell is quiet
            return

    def close(self) -> None:
        """Close the bell and all lines."""
        for peer in list(self._lines):
            self.disconnect(peer)
        self._socket.close()


def parse_address(address: str) -> tuple[str, int]:
    """Split host:port."""
    host, _, port = address.rpartition(":")
    return host, int(port)
